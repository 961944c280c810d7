"""A broker that was started on what was restored: each way in which it would fail on day one is a finding, named. A real broker:
tests/peers/test_drill.py."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from headwater.drill import broker_check
from headwater.drill.broker_check import control_group, java_hash
from headwater.drill.drill_report import DrillOutcome, DrillReport
from headwater.drill.equipment import OpenSpare, SpareBroker
from headwater.drill.scratch import Scratch
from headwater.drill_text import report_text
from headwater_core.errors import NotFound, UnsupportedFormat
from headwater_core.segments import flexible
from headwater_core.segments.coordinator_records import CommitValue
from recovery import RecoveryPlan
from recovery.recovered_groups import CommittedPlace
from tests.headwater.drill.spare import RestoredCoordinators, served
from tests.headwater.drill.test_coordinator_check import COMPLETE_COMMIT, PREPARE_ABORT, older_coordinator
from tests.headwater.drill.test_drill_run import drill
from tests.recovery.written_archive import TOPIC_ID, Archive, batches_in, data, plain, shares, snapshot, state


def of_broker(report: DrillReport) -> set[tuple[str, str]]:
    return {(each.topic, each.text) for each in report.findings if each.where == "kafka"}


def changed(change: Callable[[RestoredCoordinators], object]) -> OpenSpare:
    @contextmanager
    def spare(scratch: Scratch, plan: RecoveryPlan) -> Iterator[SpareBroker]:
        with served(scratch, plan) as broker:
            assert isinstance(broker.coordinators, RestoredCoordinators)
            change(broker.coordinators)
            yield broker

    return spare


def append(log_dir: Path, name: str, batch: Callable[[int], bytes]) -> None:
    """batch: of its offset"""
    header, _ = batches_in(log_dir / name)[-1]
    raw = batch(header.next_offset)
    with max((log_dir / name).glob("*.log")).open("ab") as file:
        file.write(raw[:12] + flexible.i32(header.leader_epoch) + raw[16:])


def test_what_a_broker_gives_as_it_was_restored_is_counted(tmp_path: Path) -> None:
    coordinators: list[RestoredCoordinators] = []
    report = drill(older_coordinator().store, tmp_path, spare=changed(coordinators.append))
    assert (report.outcome, report.findings) == (DrillOutcome.PASSED, ())
    assert report.answers == {"committed offsets": 2, "transactional ids": 3, "ends of logs": 4}
    assert "2 committed offsets, 3 transactional ids, 4 ends of logs checked" in report_text(report)
    assert coordinators[0].checked == [0]
    assert any("offsets.retention.minutes" in each for each in report.unchecked)


def test_without_a_broker_it_says_what_was_not_checked(tmp_path: Path) -> None:
    report = drill(older_coordinator().store, tmp_path)
    assert report.answers == {}
    assert "committed offsets, transactional ids and reads of committed data at a broker: no Kafka is configured" in report.unchecked


def test_commits_with_the_times_of_before_are_gone_after_a_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CommitValue, "rewritten", lambda value, *_, **__: value.raw)
    report = drill(older_coordinator().store, tmp_path, spare=served)
    assert of_broker(report) == {
        ("__consumer_offsets", "group 'readers' has no commit for menu:0, 7 was restored"),
        ("__consumer_offsets", "group 'writers' has no commit for menu:0, 700 was restored"),
    }


def test_a_commit_at_another_offset_is_a_finding(tmp_path: Path) -> None:
    def set_back(coordinators: RestoredCoordinators) -> None:
        commits = coordinators.groups[0].commits
        [key] = [key for key in commits if key.group == "readers"]
        commits[key] = commits[key]._replace(offset=6)

    report = drill(older_coordinator().store, tmp_path, spare=changed(set_back))
    assert of_broker(report) == {("__consumer_offsets", "group 'readers' has offset 6 for menu:0, 7 was restored")}


def test_an_id_that_nobody_can_begin_again_is_a_finding(tmp_path: Path) -> None:
    def meddle(log_dir: Path) -> None:
        append(log_dir, "__transaction_state-0", lambda offset: state(offset, "stuck", 7, PREPARE_ABORT, ("orders", 0)))

    report = drill(older_coordinator().store, tmp_path, meddle=meddle, spare=served)
    assert ("__transaction_state", "transactional id 'stuck' cannot begin again: CONCURRENT_TRANSACTIONS") in of_broker(report)
    assert report.answers["transactional ids"] == 4


def test_a_reader_that_does_not_get_to_the_end_is_a_finding(tmp_path: Path) -> None:
    def meddle(log_dir: Path) -> None:
        append(log_dir, "orders-0", lambda offset: data(offset, 9))

    report = drill(older_coordinator().store, tmp_path, meddle=meddle, spare=served)
    assert ("orders", "a reader of committed data ends at offset 4, the log at 5") in of_broker(report)


def test_a_log_that_a_coordinator_has_made_longer_is_a_finding(tmp_path: Path) -> None:
    report = drill(older_coordinator().store, tmp_path, meddle=lambda log_dir: append(log_dir, "orders-0", plain), spare=served)
    [text] = [text for topic, text in of_broker(report) if topic == "orders"]
    assert text.startswith("the log ends at offset 5, it was restored up to 4")


def test_of_very_many_ids_some_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_check, "IDS_MAX", 2)
    archive = Archive()
    archive.topic("orders", [plain(0)])
    archive.topic("__transaction_state", [state(at, f"id-{at}", at, COMPLETE_COMMIT) for at in range(5)])
    report = drill(archive.store, tmp_path, spare=served)
    assert (report.outcome, report.answers["transactional ids"]) == (DrillOutcome.PASSED, 2)
    assert "3 transactional ids of 5: 2 were drawn to begin again" in report.unchecked


def test_share_groups_begin_where_they_were(tmp_path: Path) -> None:
    archive = Archive()
    archive.topic("orders", [plain(0, 9)])
    archive.topic("__share_group_state", [shares(0, ("cooks", snapshot(3)), ("hosts", snapshot(4)), ("gone", snapshot(5)), ("gone", None))])
    assert archive.ids["orders"] == TOPIC_ID

    def outcome(**starts: int) -> DrillReport:
        known = {CommittedPlace(group, "orders", 0): start for group, start in starts.items()}
        return drill(archive.store, tmp_path, spare=changed(lambda coordinators: coordinators.starts.update(known)))

    sound = outcome(cooks=3, hosts=4)
    assert (sound.outcome, sound.answers["start offsets of share groups"]) == (DrillOutcome.PASSED, 2)
    assert of_broker(outcome(cooks=3, hosts=0)) == {("orders", "share group 'hosts' begins at offset 0 of orders:0, 4 was restored")}
    unknown = outcome(cooks=3)
    assert (unknown.outcome, unknown.unmet) == (DrillOutcome.INCOMPLETE, ("kafka: share group 'hosts' is not known for orders:0",))


def test_an_answer_that_says_that_it_cannot_be_read_is_a_finding(tmp_path: Path) -> None:
    def refuse(coordinators: RestoredCoordinators) -> None:
        def committed(groups: Collection[str]) -> Mapping[CommittedPlace, int]:
            raise NotFound("code 24")

        coordinators.committed = committed  # type: ignore[method-assign]
        coordinators.pass_expiry_check = lambda *_: None  # type: ignore[method-assign]

    report = drill(older_coordinator().store, tmp_path, spare=changed(refuse))
    assert of_broker(report) == {("__consumer_offsets", "committed offsets cannot be read: code 24")}


def test_a_broker_without_share_groups_says_nothing_of_the_archive(tmp_path: Path) -> None:
    archive = Archive()
    archive.topic("orders", [plain(0, 9)])
    archive.topic("__share_group_state", [shares(0, ("cooks", snapshot(3)))])

    def lack(coordinators: RestoredCoordinators) -> None:
        def shared(groups: Collection[str]) -> Mapping[CommittedPlace, int]:
            raise UnsupportedFormat("where share group cooks is cannot be read: code 35")

        coordinators.shared = shared  # type: ignore[method-assign]

    report = drill(archive.store, tmp_path, spare=changed(lack))
    assert (report.outcome, report.findings) == (DrillOutcome.UNFINISHED, ())
    assert "share groups could not be checked: where share group cooks is cannot be read: code 35" in report.error


@pytest.mark.parametrize(("name", "found"), [("group", 98629247), ("polygenelubricants", 0)])
def test_groups_are_where_java_has_them(name: str, found: int) -> None:
    """The last one is the text of the hash code that has no absolute value."""
    assert java_hash(name) == found


@pytest.mark.parametrize("partition", [0, 49])
def test_a_control_group_is_in_its_partition_and_nobody_elses(partition: int) -> None:
    one = control_group(partition, 50, ())
    other = control_group(partition, 50, {one})
    assert one != other
    assert {java_hash(one) % 50, java_hash(other) % 50} == {partition}
