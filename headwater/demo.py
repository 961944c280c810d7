"""The demo: archive a log that a real Kafka broker wrote, delete local segments, read it back, lose everything, recover, read again.

Each act does what the commands do, and every record is compared, field by field, with what a Java client once read from that
broker.
"""

import shutil
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from urllib.parse import quote

import recovery
from headwater.config import Config, load
from headwater.gateway_thread import running_gateway
from headwater.output import ProgressReport
from headwater.replay import Place, compare, expected_records
from headwater.session import PassRequest, open_session, pass_rows
from headwater.units import size_text
from headwater.wiring import open_bucket, open_logs
from headwater_core.counts import count_text
from headwater_core.errors import NotFound
from headwater_core.segments.log_dirs import LogDirs

CLUSTER = "pantry"
ISOLATIONS = ("read_uncommitted", "read_committed")
Track = Callable[[str, int, bool], AbstractContextManager[ProgressReport]]  # title, total, is it bytes?


@dataclass(slots=True)
class TopicLine:
    """One line of the demo's table, over all partitions. offsets: from the archive's start to its end."""

    topic: str
    partitions: int = 0
    offsets: int = 0
    records: int = 0
    from_archive: int = 0
    objects: int = 0
    archived_bytes: int = 0
    released_bytes: int = 0
    recovered_bytes: int = 0
    archived_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """One reading of all topics. delivered: records that the broker delivered; equal: those that were read back equal in every field."""

    reading: str
    isolation: str
    delivered: int
    equal: int


@dataclass(frozen=True, slots=True)
class Act:
    """The result of one act, for people."""

    title: str
    told: str
    elapsed_s: float


class Demo:
    """The demo in the directory `root`: the broker's log, the bucket, the agent's state, later the recovered log, and the configuration."""

    def __init__(self, root: Path, track: Track) -> None:
        self.root = root
        self.log_dir, self.recovered_dir = root / "kafka" / CLUSTER, root / "recovered"
        self.topics: dict[str, TopicLine] = {}
        self.comparisons: list[Comparison] = []
        self._track = track

    @property
    def config_file(self) -> Path:
        return self.root / "headwater.toml"

    def play(self) -> Iterator[Act]:
        """Each act when it is done. Raises VerificationFailed for the first record that differs."""
        for title, act in (
            ("a log", self.unpack),
            ("archive", self.archive),
            ("read across the border", self.read_back),
            ("archive the rest", self.flush),
            ("lose everything", self.lose),
            ("recover", self.recover),
            ("read again", self.read_recovered),
        ):
            started = time.monotonic()
            result = act()
            yield Act(title, result, time.monotonic() - started)

    def unpack(self) -> str:
        """Unpack the log directory of a broker after a clean stop."""
        with _data(f"{CLUSTER}.tar.xz") as archive, tarfile.open(archive) as tar:
            tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11 has it from 3.11.4 on
            tar.extractall(self.root / "kafka")
        logs = LogDirs([self.log_dir]).partitions()
        for log in logs:
            self._facts(log.partition.topic).partitions += 1
        self._configure(self.log_dir)
        size_bytes = sum(segment.size_bytes for log in logs for segment in log.segments)
        partitions, topics = count_text(len(logs), "partition"), count_text(len(self.topics), "topic")
        return f"{partitions} of {topics}, {size_text(size_bytes)}, as a Kafka broker left them"

    def archive(self) -> str:
        """Archive sealed segments and delete them from the disk."""
        objects, archived_bytes, released_bytes = self._pass(PassRequest())
        return (
            f"{objects} sealed segments, {size_text(archived_bytes)}, are in the bucket; {size_text(released_bytes)} are gone from the disk"
        )

    def flush(self) -> str:
        """Archive the committed part of active segments."""
        objects, archived_bytes, _ = self._pass(PassRequest(tail_older_than_s=0))
        return f"{objects} committed tails of active segments, {size_text(archived_bytes)}"

    def read_back(self) -> str:
        """Read everything as one log: old offsets come from the bucket, new ones from the disk."""
        records, from_archive, downloads = self._read(self._config(), "bucket and local log", count=True)
        return (
            f"{records} records equal what the broker delivered; {from_archive} of them came from the bucket, in {downloads} ranged reads"
        )

    def lose(self) -> str:
        """Delete the log and the agent's state."""
        shutil.rmtree(self.log_dir)
        shutil.rmtree(self.root / "state")
        left = [path for path in (self.root / "bucket").rglob("*") if path.is_file()]
        return f"only the bucket remains: {len(left)} objects, {size_text(sum(path.stat().st_size for path in left))}"

    def recover(self) -> str:
        """Recover the log directory from the bucket, with the lost cluster's id, so that its archive continues."""
        bucket = open_bucket(self._config())
        owner = bucket.manifests.owner()
        if owner is None:
            raise NotFound(f"{bucket.store.url} is not an archive")
        # Kept open, as the records are compared with what was there: behind what recovery ends, readers of committed data see more.
        options = recovery.Options(cluster_id=owner.cluster_id, open_transactions="keep")
        plan = recovery.plan(bucket.manifests, None, options)
        with self._track("recovering", plan.size_bytes, True) as shown:
            done = recovery.apply(plan, self.recovered_dir, bucket.store, progress=shown.advance)
        for topic in done.topics:
            self._facts(topic.topic).recovered_bytes = topic.size_bytes
        self._configure(self.recovered_dir)
        return f"{len(done.topics)} topics, {done.records} records, {size_text(done.size_bytes)}, verified batch by batch"

    def read_recovered(self) -> str:
        """Read everything from the recovered directory alone."""
        config = load(self.config_file, {}, {"hydration.read_priority": "local-only"})
        records, _, _ = self._read(config, "recovered log", count=False)
        return f"{records} records equal what the broker delivered"

    @contextmanager
    def endpoint(self) -> Iterator[str]:
        """The gateway over the present log and bucket."""
        config = self._config()
        with open_logs(config, open_bucket(config)) as logs, running_gateway(logs, config.gateway) as address:
            yield address

    def _config(self) -> Config:
        return load(self.config_file, {}, {})

    def _configure(self, log_dir: Path) -> None:
        self.config_file.write_text(
            f"""\
[node]
id = "demo"
data_dir = "{self.root}/state"

[log]
dirs = ["{log_dir}"]
owned = true                 # no broker here: what is archived may be deleted

[store]
url = "file://{quote(str(self.root))}/bucket"

[gateway]
listen = "127.0.0.1:0"       # any free port
""",
            "utf-8",
        )

    def _facts(self, topic: str) -> TopicLine:
        return self.topics.setdefault(topic, TopicLine(topic))

    def _pass(self, request: PassRequest) -> tuple[int, int, int]:
        """(objects, bytes archived, bytes released) of one pass."""
        objects = archived_bytes = released_bytes = 0
        with (
            open_session(self._config()) as session,
            self._track("archiving", sum(each.partitions for each in self.topics.values()), False) as shown,
        ):
            assert session.fleet is not None
            for row in pass_rows(session.fleet, request):
                shown.advance(1, row["topic"])
                facts = self._facts(row["topic"])
                facts.objects += row["objects"]
                facts.archived_bytes += row["archived_bytes"]
                facts.released_bytes += row["released_bytes"]
                facts.archived_s += row["elapsed_s"]
                objects += row["objects"]
                archived_bytes += row["archived_bytes"]
                released_bytes += row["released_bytes"]
        return objects, archived_bytes, released_bytes

    def _read(self, config: Config, reading: str, *, count: bool) -> tuple[int, int, int]:
        """(records, those below the local start, downloads) of reading and comparing everything once per isolation level."""
        records = from_archive = 0
        with open_logs(config, open_bucket(config)) as logs, running_gateway(logs, config.gateway) as address:
            starts: dict[Place, int | None] = {}
            for topic in logs.topics().values():
                for number in topic.partitions:
                    bounds = logs.partition(topic.name, number).bounds()
                    starts[topic.name, number] = bounds.local_start
                    if count:
                        self._facts(topic.name).offsets += bounds.high_watermark - bounds.log_start
            for isolation in ISOLATIONS:
                with _data(f"{CLUSTER}.{isolation}.jsonl.xz") as expected:
                    total = sum(1 for _ in expected_records(expected))
                    with self._track(f"reading, {isolation}", total, False) as shown:
                        found = compare(address, expected, committed=isolation == "read_committed", starts=starts, progressed=shown.advance)
                found.check()
                self.comparisons.append(Comparison(reading, isolation, total, found.total))
                records += found.total
                from_archive += found.below_start.total()
                if count and isolation == "read_uncommitted":
                    for (name, _), number in found.records.items():
                        self._facts(name).records += number
                    for (name, _), number in found.below_start.items():
                        self._facts(name).from_archive += number
            return records, from_archive, logs.hydrator.counters.downloads


@contextmanager
def _data(name: str) -> Iterator[Path]:
    with as_file(files("headwater") / "demo_data" / name) as path:
        yield path
