"""Where share groups are, against where recovered logs begin and end. With a real broker: tests/peers/test_share_groups.py."""

from pathlib import Path
from typing import Any

import pytest

from headwater_core.segments.records import decode_batch
from headwater_core.segments.share_records import ShareState, StateBatch
from recovery.share_groups import ShareStates
from tests.recovery.written_archive import Archive, plain, share_update, shares, snapshot

TOPIC = "__share_group_state"


def states(archive: Archive, into: Path, **options: Any) -> dict[str, ShareState]:
    """As the recovered coordinator will have them, by group."""
    found = ShareStates()
    for _, raw in archive.recovered(into, TOPIC, **options):
        for record in decode_batch(raw):
            found.record(record, "log")
    return {key.group: state for key, state in found.outcome().items()}


def an_archive(*runs: bytes, records: int = 10) -> Archive:
    archive = Archive()
    archive.topic("soup", [plain(0, records)])
    archive.topic(TOPIC, list(runs), **{"cleanup.policy": "delete", "retention.ms": "-1"})
    return archive


def test_records_that_get_the_offsets_of_lost_ones_are_delivered(tmp_path: Path) -> None:
    archive = an_archive(
        shares(
            0,
            ("level", snapshot(4, (4, 5, 0, 2), (8, 9, 2, 1))),
            ("started", snapshot(15)),
            ("taken", snapshot(2, (2, 7, 2, 1))),
            ("taken", share_update(-1, (8, 13, 2, 1), (17, 18, 0, 1))),
            ("fresh", snapshot(-1)),
        )
    )
    plan = archive.plan()
    assert [(each.group, each.topic, each.partition, each.offset, each.log_end, each.shared) for each in plan.offsets_ahead] == [
        ("started", "soup", 0, 15, 10, True),
        ("taken", "soup", 0, 19, 10, True),
    ]
    assert [each for each in plan.endings if "share group started has a state up to 15 of soup:0, which ends at 10" in each]
    found = states(archive, tmp_path / "log")
    assert {group: (each.start_offset, each.batches) for group, each in found.items()} == {
        "level": (4, (StateBatch(4, 5, 0, 2), StateBatch(8, 9, 2, 1))),
        "started": (10, ()),
        "taken": (2, (StateBatch(2, 9, 2, 1),)),
        "fresh": (-1, ()),
    }
    assert {found[group].snapshot_epoch for group in ("started", "taken")} == {2}


@pytest.mark.parametrize(("name", "value"), [("started", snapshot(11)), ("taken", snapshot(2, (9, 10, 2, 1)))], ids=["start", "batch"])
def test_a_state_one_record_beyond_the_log_is_beyond_it(name: str, value: bytes) -> None:
    """The record that gets offset 10 next was never delivered."""
    assert [(ahead.offset, ahead.log_end) for ahead in an_archive(shares(0, (name, value))).plan().offsets_ahead] == [(11, 10)]
    assert an_archive(shares(0, ("level", snapshot(10)))).plan().offsets_ahead == ()


def test_they_stay_as_they_are_on_request(tmp_path: Path) -> None:
    archive = an_archive(shares(0, ("started", snapshot(15))))
    assert len(archive.plan(keep_offsets=True).offsets_ahead) == 1
    assert states(archive, tmp_path / "log", keep_offsets=True)["started"].start_offset == 15


def test_a_group_that_was_deleted_or_is_of_another_topic_is_left_alone(tmp_path: Path) -> None:
    archive = an_archive(shares(0, ("gone", snapshot(15)), ("gone", None)), shares(2, ("elsewhere", snapshot(15)), topic_id="A" * 22))
    assert archive.plan().offsets_ahead == ()
    assert states(archive, tmp_path / "log").keys() == {"elsewhere"}


def test_leaders_are_elected_above_the_epochs_that_share_groups_have_seen() -> None:
    """Their coordinator refuses lower ones; nothing says them in the logs themselves, where nobody wrote in that epoch."""
    archive = an_archive(shares(0, ("cooks", snapshot(3, leader_epoch=7)), ("cooks", share_update(-1, leader_epoch=9))))
    assert archive.partition("soup").leader_epoch == 9
    assert an_archive(shares(0, ("cooks", snapshot(3, leader_epoch=1)))).partition("soup").leader_epoch == 4


def test_an_update_without_its_snapshot_is_where_a_group_begins() -> None:
    archive = an_archive(shares(0, ("cooks", share_update(12, (14, 15, 2, 1)))))
    [ahead] = archive.plan().offsets_ahead
    assert (ahead.group, ahead.offset) == ("cooks", 16)


def test_what_stays_in_the_archive_is_said_to_be_skipped() -> None:
    archive = Archive()
    archive.topic("soup", [plain(0, 10)], [plain(10, 10)])
    archive.topic(
        TOPIC, [shares(0, ("cooks", snapshot(4)), ("waiters", snapshot(20)))], **{"cleanup.policy": "delete", "retention.ms": "-1"}
    )
    [note] = [each for each in archive.plan(mode="instant").endings if "share groups skip" in each]
    assert "no gateway serves them: cooks;" in note
    assert not [each for each in archive.plan().endings if "share groups skip" in each]


def test_a_record_that_cannot_be_read_is_said_to_be_left() -> None:
    archive = an_archive(shares(0, ("cooks", b"\x00\x05"), ("waiters", b"\x00\x00\x01")))
    endings = archive.plan().endings
    assert [each for each in endings if each.startswith("version 5 of a share group's state: left as it is")]
    assert [each for each in endings if each.startswith("a record that cannot be decoded, ")]


def test_the_end_of_the_states_own_log_counts(tmp_path: Path) -> None:
    archive = an_archive(shares(0, ("cooks", snapshot(3))), shares(1, ("cooks", snapshot(9))))
    assert states(archive, tmp_path / "log", to_offsets={f"{TOPIC}:0": 1})["cooks"].start_offset == 3
