"""What a real broker does with its own directories, where Headwater counts on it."""

import shutil
from pathlib import Path

import pytest

from archival.archive_pass import archive_all
from archival.fleet import PartitionOutcome
from headwater.session import PassRequest, open_session
from headwater.survey import survey_partitions
from headwater.wiring import open_log_dirs
from headwater_core.errors import UnrelatedLog
from tests.archival.builders import ranges
from tests.peers.agent import Headwater
from tests.peers.kafka import KafkaBroker, produce

pytestmark = pytest.mark.peer

TOPIC = "soup"


def test_no_broker_starts_on_a_directory_with_lost_and_found(tmp_path: Path) -> None:
    """The root of a file system: `recover apply --into` refuses it."""
    (tmp_path / "kafka").mkdir()
    broker = KafkaBroker(tmp_path / "kafka", tmp_path / "work")
    broker.format()
    (tmp_path / "kafka" / "lost+found").mkdir()
    with pytest.raises(AssertionError, match="the broker ended"):
        broker.start()
    assert "'lost+found' is not in the form of topic-partition" in broker.log_text()


@pytest.mark.parametrize("killed", [False, True])
def test_a_broker_that_starts_deletes_cleaned_files_and_finishes_swaps(killed: bool, tmp_path: Path) -> None:
    with KafkaBroker(tmp_path / "kafka", tmp_path / "work", compaction=False) as broker:
        broker.create_topic(TOPIC, internal_segment_bytes=4096)
        produce(broker.producer(), TOPIC, [b"x" * 1500] * 12)
        directory = tmp_path / "kafka" / f"{TOPIC}-0"
        broker.kill() if killed else broker.stop()
        logs = {path.name: path.read_bytes() for path in sorted(directory.glob("*.log"))}
        assert len(logs) > 4
        swapped, cleaned = list(logs)[1], list(logs)[3]
        (directory / swapped).rename(directory / f"{swapped}.swap")
        (directory / f"{cleaned}.cleaned").write_bytes(b"")
        broker.start()
        assert {path.name: path.read_bytes() for path in directory.glob("*.log")} == logs
        assert not [*directory.glob("*.swap"), *directory.glob("*.cleaned")]


def test_a_replaced_disk_begins_anew_in_a_newer_epoch_and_supersedes_nothing(tmp_path: Path) -> None:
    """The metadata log lies elsewhere, as it would to outlive the disk."""
    log_dir, metadata = tmp_path / "kafka", tmp_path / "metadata"
    headwater = Headwater(tmp_path / "headwater", log_dir)
    headwater.file.write_text(headwater.file.read_text().replace("[log]\n", f'[log]\nmetadata_dir = "{metadata}"\n'))
    with KafkaBroker(log_dir, tmp_path / "work", properties={"metadata.log.dir": metadata}) as broker:
        broker.create_topic(TOPIC)
        produce(broker.producer(), TOPIC, [b"before"] * 5)
        broker.stop()
        headwater.archive(tails=True)
        before = headwater.heads()[TOPIC, 0]
        assert ranges(before.entries) == [(0, 4)]
        shutil.rmtree(log_dir / f"{TOPIC}-0")
        broker.start()
        produce(broker.producer(), TOPIC, [b"after"] * 3)
        broker.stop()
    (log,) = open_log_dirs(headwater.config).partitions()
    assert log.epochs.first_offset == 0
    assert log.epochs.oldest is not None
    assert log.epochs.oldest > before.leader_epoch
    (standing,) = survey_partitions(headwater.config, TOPIC)
    assert (standing.state, standing.local_start, standing.last_offset) == ("stopped", 0, 4)
    assert isinstance(outcome_of(headwater).error, UnrelatedLog)
    assert headwater.heads()[TOPIC, 0] == before
    consent = f'[topics."{TOPIC}"]\nbegin_anew_epoch = {log.epochs.oldest}\n'
    headwater.file.write_text(headwater.file.read_text() + consent)
    headwater.archive(tails=True)
    after = headwater.heads()[TOPIC, 0]
    assert (ranges(after.entries), ranges(after.superseded)) == ([(0, 2)], [(0, 4)])


def outcome_of(headwater: Headwater) -> PartitionOutcome:
    with open_session(headwater.config) as held:
        assert held.fleet is not None
        (outcome,) = archive_all(held.fleet, PassRequest(tail_older_than_s=0).policy)
    return outcome
