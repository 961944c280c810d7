import os
from pathlib import Path

import pytest

from headwater_core.errors import CorruptData, SourceChanged, UnsupportedFormat
from headwater_core.partition import topic_id_text
from headwater_core.segments.metadata.bootstrap_checkpoint import write_bootstrap_checkpoint
from headwater_core.segments.metadata.metadata_log import MetadataLog
from headwater_core.segments.metadata.metadata_records import (
    FeatureLevel,
    MetadataRecord,
    PartitionChange,
    Topic,
    Unread,
)
from headwater_core.segments.varint import encode_uvarint
from tests.headwater_core.segments.metadata.written_log import SOUP, STEW, Log, a_partition, batch_of, newer


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


def test_a_record_of_a_later_version_is_reported_again_without_reading_all_again(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
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
