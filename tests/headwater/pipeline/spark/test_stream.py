"""Archived topics as a stream, on a real Spark: every offset once, whatever happens to the query and to the archive."""

import contextlib
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import psutil  # type: ignore[import-untyped]
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.streaming.query import StreamingQuery

from headwater.pipeline.scan.query_options import parse_query
from headwater.pipeline.spark.stream import StreamReader, parse_stream_query
from headwater_core.errors import CorruptData, DataLoss, TransientError
from headwater_core.objectstore.directory import DirectoryStore
from tests.headwater.pipeline.archives import soup
from tests.headwater.pipeline.growing import Growing, Offsets
from tests.headwater.pipeline.scan.damageable import read_quarantine
from tests.headwater_core.segments.builders import a_batch, a_commit, a_segment

SEED = 20
LIVES = int(os.environ.get("STREAM_LIVES", "5"))  # `make soak` has more


@dataclass
class Sink:
    """Idempotent, as a table with a column for the batch id is: what a batch wrote before is replaced."""

    batches: dict[int, Offsets] = field(default_factory=dict)
    before: Callable[[int], None] = lambda _: None
    after: Callable[[int], None] = lambda _: None

    def __call__(self, rows: DataFrame, batch: int) -> None:
        self.before(batch)
        found = sorted((row.topic, row.partition, row.offset) for row in rows.collect())
        assert self.batches.get(batch, found) == found, "a batch that was repeated had other records"
        self.batches[batch] = found
        self.after(batch)

    @property
    def offsets(self) -> Offsets:
        return sorted(row for rows in self.batches.values() for row in rows)

    @property
    def sizes(self) -> list[int]:
        return [len(self.batches[batch]) for batch in sorted(self.batches) if self.batches[batch]]


def start(
    spark: SparkSession, world: Growing, checkpoint: Path, sink: Sink, options: Mapping[str, object], *, until_done: bool
) -> StreamingQuery:
    reader = spark.readStream.format("headwater").option("store", world.url).option("columns", "topic,partition,offset")
    for name, value in {"topics": "*", "startingOffsets": "earliest", **options}.items():
        reader = reader.option(name, str(value))
    writer = reader.load().writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    return (writer.trigger(availableNow=True) if until_done else writer).start()


def run(spark: SparkSession, world: Growing, checkpoint: Path, sink: Sink, **options: object) -> None:
    """Everything there is to read; then the query ends by itself."""
    query = start(spark, world, checkpoint, sink, options, until_done=True)
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()


@pytest.mark.long
def test_a_limit_makes_small_batches_and_a_restart_goes_on_where_the_query_ended(spark: SparkSession, tmp_path: Path) -> None:
    world, sink = Growing(tmp_path / "archive"), Sink()
    for partition in range(3):
        world.append("soup", partition, records=10, batches=2)
    run(spark, world, tmp_path / "checkpoint", sink, maxOffsetsPerTrigger=25)
    assert sink.offsets == world.offsets()
    assert sink.sizes == [25, 25, 10]
    world.append("soup", 1, records=7)
    world.append("soup", 3, records=5)
    world.append("salad", records=3)
    run(spark, world, tmp_path / "checkpoint", sink, startingOffsets="latest")
    assert sink.offsets == world.offsets()
    assert sink.sizes == [25, 25, 10, 15]


@pytest.mark.long
def test_bytes_are_a_limit_too(spark: SparkSession, tmp_path: Path) -> None:
    world, sink = Growing(tmp_path / "archive"), Sink()
    world.append("soup", records=10, batches=4, value_bytes=1000)
    run(spark, world, tmp_path / "checkpoint", sink, maxBytesPerTrigger="15KiB", maxOffsetsPerTrigger=14)
    assert sink.offsets == world.offsets()
    assert sink.sizes == [14, 14, 12]


def test_a_strategy_is_no_start() -> None:
    start = parse_stream_query({"topics": "a", "startingOffsetsByTimestampStrategy": "latest"}).starting
    assert start == parse_stream_query({"topics": "a"}).starting != parse_query({"topics": "a"}).starting


def test_without_starting_offsets_only_what_comes_is_read_and_new_partitions_from_their_start(spark: SparkSession, tmp_path: Path) -> None:
    world, sink = Growing(tmp_path / "archive"), Sink()
    world.append("soup", records=10)
    run(spark, world, tmp_path / "checkpoint", sink, startingOffsets="latest", topics="s*")
    assert sink.offsets == []
    world.append("soup", records=2)
    world.append("salad", records=3)
    world.append("bread", records=3)
    run(spark, world, tmp_path / "checkpoint", sink, startingOffsets="latest", topics="s*")
    assert sink.offsets == [*(("salad", 0, offset) for offset in range(3)), ("soup", 0, 10), ("soup", 0, 11)]


def test_read_committed_waits_for_open_transactions(spark: SparkSession, tmp_path: Path) -> None:
    world, sink = Growing(tmp_path / "archive"), Sink()
    soup = world.archive("soup")
    soup.append(a_batch(0, 5) + a_batch(5, 3, producer=7, transactional=True) + a_batch(8, 4))
    run(spark, world, tmp_path / "checkpoint", sink, isolation="read_committed")
    assert [offset for _, _, offset in sink.offsets] == [0, 1, 2, 3, 4]
    soup.append(a_commit(12, 7) + a_batch(13, 2))
    run(spark, world, tmp_path / "checkpoint", sink, isolation="read_committed")
    assert [offset for _, _, offset in sink.offsets] == [*range(12), 13, 14]


def cut_off(world: Growing) -> None:
    archive = world.archive("soup")
    archive.commit(*tuple(archive.head.entries)[:1])


def turn_to_another_branch(world: Growing) -> None:
    archive = world.archive("soup")
    archive.commit(archive.head.entries[0], archive.upload(a_segment(10, 3, records=10, epoch=5)))


def create_again(world: Growing) -> None:
    del world.archives["soup", 0]
    world.archive("soup", incarnation=2).append(a_segment(0, 3, records=10))


def drop_unread(world: Growing) -> None:
    world.append("soup", records=10)
    world.append("soup", records=10)
    archive = world.archive("soup")
    archive.commit(archive.head.entries[-1])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        pytest.param(
            cut_off, "the stream has read up to offset 20, the archive ends at 10 now: an unclean election", marks=pytest.mark.long
        ),
        (turn_to_another_branch, "offset 19 of leader epoch 0, the archive has one of epoch 5 there now: an unclean election"),
        (create_again, "it was deleted and created again"),
        pytest.param(drop_unread, "the stream has read up to offset 20, the archive begins at 30 now", marks=pytest.mark.long),
    ],
    ids=lambda value: getattr(value, "__name__", "says"),
)
def test_a_stream_ends_with_an_error_where_the_archive_is_no_longer_what_was_read(
    spark: SparkSession, tmp_path: Path, change: Callable[[Growing], None], says: str
) -> None:
    world, sink = Growing(tmp_path / "archive"), Sink()
    world.append("soup", records=10)
    world.append("soup", records=10)
    run(spark, world, tmp_path / "checkpoint", sink)
    change(world)
    with pytest.raises(StreamingQueryException, match=says):
        run(spark, world, tmp_path / "checkpoint", sink)
    assert len(sink.offsets) == 20


@pytest.mark.long
def test_lost_offsets_may_be_allowed(spark: SparkSession, tmp_path: Path) -> None:
    world, sink = Growing(tmp_path / "archive"), Sink()
    world.append("soup", records=20)
    run(spark, world, tmp_path / "checkpoint", sink)
    drop_unread(world)
    world.append("soup", records=1)
    run(spark, world, tmp_path / "checkpoint", sink, failOnDataLoss="false")
    assert [offset for _, _, offset in sink.offsets] == [*range(20), *range(30, 41)]


def a_reader(world: Growing, **options: object) -> StreamReader:
    return StreamReader(parse_stream_query({"store": world.url, "topics": "*", "startingOffsets": "earliest", **options}))


def out_of_reach(_: object) -> NoReturn:
    raise TransientError("the bucket does not answer")


def test_a_bucket_that_does_not_answer_has_nothing_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = Growing(tmp_path / "archive")
    world.append("soup", records=10)
    reader = a_reader(world)
    start = reader.initialOffset()
    with monkeypatch.context() as patch:
        patch.setattr("headwater.pipeline.spark.stream.opened", out_of_reach)
        assert reader.latestOffset(start, ReadAllAvailable()) == start
        with pytest.raises(TransientError):
            reader.prepareForTriggerAvailableNow()
    reader.prepareForTriggerAvailableNow()
    monkeypatch.setattr("headwater.pipeline.spark.stream.opened", out_of_reach)
    with pytest.raises(TransientError):  # to say "nothing new" now would end the query before it has read everything
        reader.latestOffset(start, ReadAllAvailable())


def test_a_partition_whose_manifest_is_damaged_keeps_its_place_while_the_others_go_on(tmp_path: Path) -> None:
    world = Growing(tmp_path / "archive")
    for topic in ("soup", "stew"):
        world.append(topic, records=10)
    reader = a_reader(world, onCorrupt="quarantine", quarantinePath=str(tmp_path / "aside"))
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    for topic in ("soup", "stew"):
        world.append(topic, records=5)
    promised = reader.latestOffset(start, ReadAllAvailable())
    (head,) = (tmp_path / "archive" / "meta" / "stew").glob("*/0/manifest.json")
    sound = head.read_bytes()
    head.write_bytes(sound[:-40])
    end = reader.latestOffset(start, ReadAllAvailable())
    assert {topic: each["partitions"]["0"]["next"] for topic, each in end["topics"].items()} == {"soup": 15, "stew": 10}
    (task,) = reader.partitions(start, end)
    assert task.value.topic == "soup"
    (damage,) = read_quarantine(DirectoryStore(tmp_path / "aside"))
    assert (damage.topic, damage.partition, damage.first_offset) == ("stew", 0, None)
    with pytest.raises(CorruptData):  # of a batch that was planned with it, nothing may be missing
        reader.partitions(start, promised)
    with pytest.raises(CorruptData, match="onCorrupt=quarantine"):
        a_reader(world).latestOffset(start, ReadAllAvailable())
    head.write_bytes(sound)
    assert reader.latestOffset(end, ReadAllAvailable()) == promised


def test_a_topic_that_is_no_longer_asked_for_is_not_called_lost(tmp_path: Path) -> None:
    world = Growing(tmp_path / "archive")
    for topic in ("soup", "stew"):
        world.append(topic, records=10)
    reader = a_reader(world)
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    with pytest.raises(DataLoss, match=r"stew:0.*it is no longer selected.*failOnDataLoss=false"):
        a_reader(world, topics="*,!stew").latestOffset(start, ReadAllAvailable())
    assert a_reader(world, topics="*,!stew", failOnDataLoss="false").latestOffset(start, ReadAllAvailable()) == start


def test_sparks_own_limit_counts_and_everything_means_everything(tmp_path: Path) -> None:
    world = Growing(tmp_path / "archive")
    world.append("soup", records=10)
    reader = a_reader(world, maxOffsetsPerTrigger=4)
    assert reader.getDefaultReadLimit() == ReadMaxRows(4)
    assert a_reader(world).getDefaultReadLimit() == ReadAllAvailable()
    start = reader.initialOffset()
    assert next_offset(reader.latestOffset(start, ReadMaxRows(4))) == 4
    assert next_offset(reader.latestOffset(start, ReadAllAvailable())) == 10


def test_a_spark_that_says_nothing_is_served_too(tmp_path: Path) -> None:
    world = Growing(tmp_path / "archive")
    world.append("soup", records=10)
    reader = a_reader(world, maxOffsetsPerTrigger=4)
    start = reader.initialOffset()
    end = reader.latestOffset()
    assert next_offset(end) == 4
    assert [(each.value.first, each.value.end) for each in reader.partitions(start, end)] == [(0, 4)]
    assert next_offset(reader.latestOffset()) == 8
    restarted = a_reader(world, maxOffsetsPerTrigger=4)
    assert next_offset(restarted.latestOffset()) == 10


def next_offset(place: dict[str, Any]) -> int:
    return int(place["topics"]["soup"]["partitions"]["0"]["next"])


def test_a_stream_has_no_end(spark: SparkSession, tmp_path: Path) -> None:
    world = Growing(tmp_path / "archive")
    world.append("soup", records=1)
    with pytest.raises(PySparkException, match="a stream has no end"):
        run(spark, world, tmp_path / "checkpoint", Sink(), endingOffsets='{"soup": {"0": 1}}')


class Killed(Exception):
    pass


def kill_workers(program: str) -> int:
    """kill -9 of the Python workers that this JVM has for one purpose, not of the server that forks them; how many they were."""
    commands = {process: command_of(process) for process in psutil.Process().children(recursive=True)}
    killed = 0
    for process, command in commands.items():
        is_server = SERVER in command and SERVER not in commands.get(process.parent(), [])
        if program in command and not is_server:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
                killed += 1
    return killed


def command_of(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:  # it has just ended
        return []


SERVER = "pyspark.daemon"
PROGRAMS = {"planner": "pyspark.sql.streaming.python_streaming_source_runner", "reader": "pyspark.worker"}
WAYS = ("before the sink", "behind the sink", "stopped", *PROGRAMS)


def deaths(rng: random.Random) -> Iterator[str]:
    """Every way to die equally often, in any order."""
    while True:
        yield from rng.sample(WAYS, len(WAYS))


@pytest.mark.long
def test_a_stream_killed_again_and_again_while_the_archive_grows_delivers_each_offset_once(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    world, sink, checkpoint = Growing(tmp_path / "archive"), Sink(), tmp_path / "checkpoint"
    ways = deaths(rng)
    died: list[str] = []
    killed: Counter[str] = Counter()

    def grow(_: int = 0) -> None:
        """So that there is always something to read: more of the old, partitions and topics that are new, objects merged away."""
        topic = rng.choice(["orders", "orders", "pay", f"refunds-{len(died)}"])
        partition = rng.randrange(3) if topic == "orders" else 0
        world.append(topic, partition, records=rng.randrange(1, 30), batches=rng.randrange(1, 4))
        if rng.random() < 0.3:
            world.merge(*rng.choice(sorted(world.archives)))

    grow()
    for _ in range(LIVES):
        way, lives_for = next(ways), rng.randrange(3)
        dying = threading.Event()
        batches = 0

        def before(batch: int, way: str = way, lives_for: int = lives_for, dying: threading.Event = dying) -> None:
            nonlocal batches
            grow()
            batches += 1
            if batches <= lives_for:
                return
            dying.set()
            if way == "before the sink":
                raise Killed
            if way in PROGRAMS:
                killed[way] += kill_workers(PROGRAMS[way])

        def behind(batch: int, way: str = way, dying: threading.Event = dying) -> None:
            if dying.is_set() and way in ("behind the sink", "reader"):  # Spark may have found another reader in time
                raise Killed

        sink.before, sink.after = before, behind
        query = start(spark, world, checkpoint, sink, {"maxOffsetsPerTrigger": rng.randrange(1, 40)}, until_done=False)
        assert dying.wait(60)
        if way == "stopped":
            query.stop()
        else:
            with pytest.raises(StreamingQueryException):
                query.awaitTermination(60)
        died.append(way)
    sink.before = sink.after = lambda _: None
    run(spark, world, checkpoint, sink)
    assert len(died) == LIVES
    assert sink.offsets == world.offsets()
    assert set(died) == set(WAYS)
    assert all(killed[way] >= died.count(way) for way in PROGRAMS), killed
    assert len(world.archives) > 4


def test_the_progress_report_names_where_an_open_transaction_ends_a_partition(tmp_path: Path) -> None:
    bucket = DirectoryStore(tmp_path / "archive")
    for info in soup().list(""):
        bucket.create(info.key, soup().get(info.key)[0])
    for isolation, hidden in (("read_committed", {"openTransactions": {"soup:0": 280}}), ("read_uncommitted", {})):
        options = {"store": f"file://{tmp_path}/archive", "topics": "*", "startingOffsets": "earliest", "isolation": isolation}
        reader = StreamReader(parse_stream_query(options))
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        assert reader.reportLatestOffset() == end | hidden
