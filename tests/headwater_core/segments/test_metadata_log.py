import io
import json
import lzma
import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater_core.errors import CorruptData, SourceChanged, UnsupportedFormat
from headwater_core.partition import topic_id_text
from headwater_core.segments.batches import walk
from headwater_core.segments.bootstrap_checkpoint import write_bootstrap_checkpoint
from headwater_core.segments.markers import read_marker
from headwater_core.segments.metadata_log import DIRECTORY, MetadataLog, PartitionMetadata
from headwater_core.segments.metadata_records import (
    RESOURCE_BROKER,
    Config,
    FeatureLevel,
    MetadataRecord,
    Partition,
    PartitionChange,
    ProducerIds,
    RemoveTopic,
    Topic,
    Transaction,
    Unread,
    decode_metadata_record,
)
from headwater_core.segments.records import Record, decode_batch
from headwater_core.segments.varint import encode_uvarint
from tests.fixtures import KAFKA, expected_cluster, unpack
from tests.headwater_core.segments.builders import a_batch

ids = st.binary(min_size=16, max_size=16).map(topic_id_text)
i32 = st.integers(-(2**31), 2**31 - 1)
i32s = st.lists(i32, max_size=4).map(tuple)
texts = st.text(max_size=20)
records = st.one_of(
    st.builds(FeatureLevel, name=texts, level=st.integers(-(2**15), 2**15 - 1)),
    st.builds(Topic, name=texts, topic_id=ids),
    st.builds(RemoveTopic, topic_id=ids),
    st.builds(
        Partition,
        partition=i32,
        topic_id=ids,
        replicas=i32s,
        in_sync=i32s,
        leader=i32,
        leader_epoch=i32,
        partition_epoch=i32,
        removing=i32s,
        adding=i32s,
        directories=st.lists(ids, min_size=1, max_size=3).map(tuple),
        eligible_leader_replicas=st.none() | i32s,
        last_known_elr=st.none() | i32s,
    ),
    st.builds(
        PartitionChange,
        partition=i32,
        topic_id=ids,
        in_sync=st.none() | i32s,
        leader=st.none() | st.integers(-1, 9),
        replicas=st.none() | i32s,
    ),
    st.builds(Config, resource_type=st.integers(-128, 127), resource_name=texts, name=texts, value=st.none() | texts),
    st.builds(ProducerIds, broker=i32, broker_epoch=st.integers(0, 2**62), next_producer_id=st.integers(0, 2**62)),
    st.builds(Transaction, api_key=st.sampled_from([23, 24, 25])),
)

SOUP, STEW = topic_id_text(b"soup" * 4), topic_id_text(b"stew" * 4)


def a_partition(number: int = 0, topic_id: str = SOUP, *, leader: int = 1, leader_epoch: int = 0) -> Partition:
    return Partition(partition=number, topic_id=topic_id, replicas=(1, 2), in_sync=(1, 2), leader=leader, leader_epoch=leader_epoch)


def batch_of(base_offset: int, *found: MetadataRecord) -> bytes:
    rows = [Record(base_offset + at, 0, None, record.encode(), ()) for at, record in enumerate(found)]
    return a_batch(base_offset, rows, epoch=1)


def newer(base_offset: int) -> bytes:
    """A batch whose record only a later version can read."""
    value = encode_uvarint(1) + encode_uvarint(Partition.api_key) + encode_uvarint(99)
    return a_batch(base_offset, [Record(base_offset, 0, None, value, ())], epoch=1)


class Log:
    """A metadata log under construction."""

    def __init__(self, root: Path) -> None:
        self.directory = root / DIRECTORY
        self.directory.mkdir()
        self.end = 0

    def append(self, *found: MetadataRecord, segment: int = 0) -> None:
        with (self.directory / f"{segment:020}.log").open("ab") as file:
            file.write(batch_of(self.end, *found))
        self.end += len(found)

    @property
    def first(self) -> Path:
        return self.directory / f"{0:020}.log"


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


@given(record=records)
def test_a_record_reads_back(record: MetadataRecord) -> None:
    assert decode_metadata_record(record.encode()) == record


@given(record=records, cut=st.floats(0, 0.999))
def test_a_truncated_record_is_noticed(record: MetadataRecord, cut: float) -> None:
    """Down to the tagged fields, where nothing we read may follow any more."""
    raw = record.encode()
    short = raw[: min(int(len(raw) * cut), len(raw) - 2)]
    try:
        decode_metadata_record(short)
    except (CorruptData, UnsupportedFormat):
        return
    assert len(short) >= len(raw) - 2


@given(raw=st.binary(max_size=40), api_key=st.integers(0, 30))
def test_any_bytes_are_a_record_or_a_typed_error(raw: bytes, api_key: int) -> None:
    with suppress(CorruptData, UnsupportedFormat):
        decode_metadata_record(encode_uvarint(1) + encode_uvarint(api_key) + encode_uvarint(0) + raw)


def test_unknown_records_are_kept_verbatim() -> None:
    raw = encode_uvarint(1) + encode_uvarint(11) + encode_uvarint(7) + b"whatever"
    assert decode_metadata_record(raw) == Unread(api_key=11, raw=raw)
    assert decode_metadata_record(raw).encode() == raw


def test_a_newer_version_of_a_known_record_is_refused() -> None:
    with pytest.raises(UnsupportedFormat, match="version 3"):
        decode_metadata_record(encode_uvarint(1) + encode_uvarint(Partition.api_key) + encode_uvarint(3))
    with pytest.raises(UnsupportedFormat, match="frame version 2"):
        decode_metadata_record(encode_uvarint(2))


@pytest.mark.parametrize("name", ["pantry", "kitchen", "brigade"])
def test_a_brokers_metadata_is_what_its_admin_api_said(name: str) -> None:
    directory = unpack(name) / "node9" if name == "brigade" else unpack(name)
    found = MetadataLog(directory / DIRECTORY).read()
    told = expected_cluster(name)
    assert dict(found.features) == told["features"]
    assert {topic["name"] for topic in told["topics"]} == set(found.topics)
    for topic in told["topics"]:
        ours = found.topics[topic["name"]]
        assert ours.topic_id == topic["topic_id"]
        assert dict(ours.configs) == topic["configs"]
        assert {each["partition"]: tuple(each["replicas"]) for each in topic["partitions"]} == {
            number: partition.replicas for number, partition in ours.partitions.items()
        }


def test_every_record_of_a_real_log_is_understood_or_kept() -> None:
    """Against the broker's own dump: as many records of each kind, in the same order."""
    kinds = {2: "TOPIC", 3: "PARTITION", 4: "CONFIG", 5: "PARTITION_CHANGE", 9: "REMOVE_TOPIC", 12: "FEATURE_LEVEL", 15: "PRODUCER_IDS"}
    kinds |= {23: "BEGIN_TRANSACTION", 24: "END_TRANSACTION"}
    path = unpack("kitchen") / DIRECTORY / f"{0:020}.log"
    raw = path.read_bytes()
    ours = []
    with path.open("rb") as file:
        for position, header in walk(file, 0, len(raw), where=path.name):
            if not header.is_control:
                for record in decode_batch(raw[position : position + header.size_bytes]):
                    assert record.value is not None
                    decoded = decode_metadata_record(record.value)
                    if not isinstance(decoded, Partition | PartitionChange | Transaction):  # read in part, or written newer
                        assert decoded.encode() == record.value
                    if decoded.api_key in kinds:
                        ours.append(f"{kinds[decoded.api_key]}_RECORD")
    with lzma.open(KAFKA / "expected" / "kitchen.metadata-dump.txt.xz", "rt") as lines:
        dumped = [json.loads(line.split("payload: ", 1)[1])["type"] for line in lines if line.startswith("| payload: ")]
    names = {f"{kind}_RECORD" for kind in kinds.values()}
    assert ours == [each for each in dumped if each in names]


def test_a_change_of_leader_begins_an_epoch_and_a_change_of_isr_does_not(log: Log) -> None:
    log.append(Topic(name="soup", topic_id=SOUP), a_partition(leader_epoch=4))
    log.append(PartitionChange(partition=0, topic_id=SOUP, in_sync=(2,)))
    log.append(PartitionChange(partition=0, topic_id=SOUP, leader=2))
    log.append(PartitionChange(partition=0, topic_id=SOUP, leader=2, replicas=(2, 3)))
    found = MetadataLog(log.directory).read()
    assert found.topics["soup"].partitions[0] == PartitionMetadata(leader=2, leader_epoch=6, replicas=(2, 3), isr=(2,))


def test_a_removed_topic_takes_its_settings_along_and_may_come_back_as_another(log: Log) -> None:
    log.append(Topic(name="soup", topic_id=SOUP), a_partition(), Config(resource_name="soup", name="cleanup.policy", value="compact"))
    log.append(RemoveTopic(topic_id=SOUP), Topic(name="soup", topic_id=STEW), a_partition(3, STEW))
    soup = MetadataLog(log.directory).read().topics["soup"]
    assert (soup.topic_id, list(soup.partitions), dict(soup.configs)) == (STEW, [3], {})


def test_policy_is_the_topics_else_the_clusters_else_kafkas(log: Log) -> None:
    log.append(Topic(name="soup", topic_id=SOUP), Topic(name="stew", topic_id=STEW))
    follower = MetadataLog(log.directory)
    assert follower.read().policy_of("soup") == {"delete"}
    log.append(Config(resource_type=RESOURCE_BROKER, resource_name="", name="log.cleanup.policy", value="compact"))
    log.append(Config(resource_name="stew", name="cleanup.policy", value="compact, delete"))
    assert follower.read().policy_of("soup") == {"compact"}
    assert follower.read().policy_of("stew") == {"compact", "delete"}
    log.append(Config(resource_name="stew", name="cleanup.policy", value=None))
    assert follower.read().policy_of("stew") == {"compact"}


def test_a_metadata_transaction_counts_as_a_whole_or_not_at_all(log: Log) -> None:
    log.append(Transaction(api_key=Transaction.BEGIN), Topic(name="soup", topic_id=SOUP))
    follower = MetadataLog(log.directory)
    assert not follower.read().topics
    log.append(Transaction(api_key=Transaction.ABORT))
    log.append(Transaction(api_key=Transaction.BEGIN), Topic(name="stew", topic_id=STEW))
    assert not follower.read().topics
    log.append(Transaction(api_key=Transaction.END))
    assert set(follower.read().topics) == {"stew"}


def test_a_torn_tail_is_not_there_yet(log: Log) -> None:
    log.append(Topic(name="soup", topic_id=SOUP))
    whole = log.first.read_bytes()
    torn = batch_of(1, Topic(name="stew", topic_id=STEW))
    follower = MetadataLog(log.directory)
    for cut in range(0, len(torn), 7):
        log.first.write_bytes(whole + torn[:cut])
        assert set(follower.read().topics) == {"soup"}
    log.first.write_bytes(whole + torn)
    assert set(follower.read().topics) == {"soup", "stew"}
    log.first.write_bytes(whole + torn + bytes(100))
    assert follower.read().end_offset == 2


def test_a_damaged_middle_is_an_error(log: Log) -> None:
    log.append(Topic(name="soup", topic_id=SOUP))
    log.append(Topic(name="stew", topic_id=STEW))
    raw = bytearray(log.first.read_bytes())
    raw[70] ^= 1
    log.first.write_bytes(raw)
    with pytest.raises(CorruptData):
        MetadataLog(log.directory).read()


def test_what_a_failed_read_had_taken_up_is_not_taken_up_again(log: Log) -> None:
    """A change of leader counts one epoch further each time it is applied."""
    log.append(Topic(name="soup", topic_id=SOUP), a_partition(leader_epoch=4))
    follower = MetadataLog(log.directory)
    follower.read()
    change, unknown = PartitionChange(partition=0, topic_id=SOUP, leader=2), PartitionChange(partition=0, topic_id=STEW, leader=2)
    sound = log.first.read_bytes()
    log.first.write_bytes(sound + batch_of(2, change, unknown))
    for _ in range(2):
        with pytest.raises(CorruptData):
            follower.read()
    log.first.write_bytes(sound + batch_of(2, change))
    assert follower.read().topics["soup"].partitions[0].leader_epoch == 5


def test_only_what_is_new_is_read_and_nothing_new_is_the_same_value(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.append(Topic(name="soup", topic_id=SOUP))
    follower = MetadataLog(log.directory)
    first = follower.read()
    assert follower.read() is first
    no_op = encode_uvarint(1) + encode_uvarint(20) + encode_uvarint(0) + encode_uvarint(0)
    log.append(Unread(api_key=20, raw=no_op))
    assert follower.read().topics is first.topics
    assert follower.read().end_offset == 2
    log.append(Topic(name="stew", topic_id=STEW), segment=2)
    assert set(follower.read().topics) == {"soup", "stew"}


def settled(log: Log) -> None:
    """Nothing has come or gone for a while."""
    for path in (log.first, log.directory):
        os.utime(path, (path.stat().st_mtime - 60, path.stat().st_mtime - 60))


def test_an_unchanged_log_is_not_listed(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.append(Topic(name="soup", topic_id=SOUP))
    settled(log)
    follower = MetadataLog(log.directory)
    first = follower.read()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", None)
        assert follower.read() is first
    log.append(Topic(name="stew", topic_id=STEW))
    assert set(follower.read().topics) == {"soup", "stew"}
    settled(log)
    follower.read()
    log.append(Topic(name="tea", topic_id=topic_id_text(b"teas" * 4)), segment=2)
    assert set(follower.read().topics) == {"soup", "stew", "tea"}


def test_a_record_of_a_later_version_is_told_again_without_reading_all_again(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.append(Topic(name="soup", topic_id=SOUP))
    follower = MetadataLog(log.directory)
    follower.read()
    whole = log.first.read_bytes()
    log.first.write_bytes(whole + newer(1))
    with pytest.raises(UnsupportedFormat, match="version 99"):
        follower.read()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", None)
        with pytest.raises(UnsupportedFormat, match="version 99"):
            follower.read()
    log.first.write_bytes(whole)
    (log.directory / "00000000000000000010-0000000001.checkpoint.part").write_bytes(b"")
    assert set(follower.read().topics) == {"soup"}


def test_records_that_were_taken_back_are_forgotten(log: Log) -> None:
    log.append(Topic(name="soup", topic_id=SOUP))
    kept = log.first.read_bytes()
    log.append(Topic(name="stew", topic_id=STEW))
    follower = MetadataLog(log.directory)
    assert set(follower.read().topics) == {"soup", "stew"}
    log.first.write_bytes(kept)
    assert set(follower.read().topics) == {"soup"}
    log.first.write_bytes(kept + batch_of(1, Topic(name="stem", topic_id=STEW)) + batch_of(2, FeatureLevel(name="x", level=1)))
    assert set(follower.read().topics) == {"soup", "stem"}


def snapshot(*found: MetadataRecord, complete: bool = True) -> bytes:
    raw = write_bootstrap_checkpoint(found)
    return raw if complete else raw[:-60]


def test_the_newest_complete_snapshot_is_where_reading_begins(log: Log) -> None:
    (log.directory / "00000000000000000010-0000000001.checkpoint").write_bytes(snapshot(Topic(name="soup", topic_id=SOUP)))
    (log.directory / "00000000000000000020-0000000001.checkpoint").write_bytes(snapshot(Topic(name="stew", topic_id=STEW), complete=False))
    (log.directory / "00000000000000000030-0000000001.checkpoint.part").write_bytes(b"junk")
    log.end = 8
    log.append(FeatureLevel(name="old", level=1), FeatureLevel(name="old", level=1), segment=8)
    log.append(FeatureLevel(name="new", level=1), segment=8)
    found = MetadataLog(log.directory).read()
    assert set(found.topics) == {"soup"}
    assert dict(found.features) == {"new": 1}
    assert found.end_offset == 11


def test_a_log_without_its_beginning_or_middle_is_refused(log: Log) -> None:
    log.end = 5
    log.append(FeatureLevel(name="x", level=1), segment=5)
    with pytest.raises(CorruptData, match="lacks offsets 0 to 4"):
        MetadataLog(log.directory).read()


def test_a_directory_that_goes_away_is_a_changed_source(tmp_path: Path) -> None:
    with pytest.raises(SourceChanged):
        MetadataLog(tmp_path / "gone").read()


def test_a_bootstrap_checkpoint_is_laid_out_as_the_brokers_tool_does() -> None:
    """Header, data, footer; read back from the broker's own file and from ours."""
    theirs = (unpack("pantry") / "bootstrap.checkpoint").read_bytes()
    values = list(read_checkpoint(theirs))
    timestamp = int.from_bytes(theirs[27:35], "big")
    ours = write_bootstrap_checkpoint([decode_metadata_record(each) for each in values], timestamp_ms=timestamp)
    assert list(read_checkpoint(ours)) == values
    assert values
    assert len(ours) == len(theirs)


def read_checkpoint(raw: bytes) -> list[bytes]:
    values, kinds, next_offset = [], [], 0
    for position, header in walk(io.BytesIO(raw), 0, len(raw), where="test"):
        batch = raw[position : position + header.size_bytes]
        assert header.base_offset == next_offset
        next_offset = header.next_offset
        if header.is_control:
            kinds.append(read_marker(batch).type)
        else:
            values += [record.value for record in decode_batch(batch) if record.value is not None]
    assert kinds == [3, 4]
    return values


def test_a_bootstrap_checkpoint_of_many_records_goes_in_batches() -> None:
    found = [FeatureLevel(name=f"feature-{number}", level=1) for number in range(1201)]
    assert read_checkpoint(write_bootstrap_checkpoint(found)) == [each.encode() for each in found]


def test_a_partition_gets_a_directory_for_each_replica() -> None:
    decoded = decode_metadata_record(a_partition().encode())
    assert isinstance(decoded, Partition)
    assert decoded.directories == ("AAAAAAAAAAAAAAAAAAAAAQ",) * 2
