"""What was committed reaches the control log in the end, and no thread waits for it."""

import threading
from pathlib import Path

import msgspec
import pytest

from archival.partition.announcer import RETRY_S, Announcer, advanced_of, claim_of
from headwater_core.clock import SystemClock
from headwater_core.control.control_records import Advanced, Record, Retired
from headwater_core.errors import DiskFull, HeadwaterError, TransientError, Unauthorised, UnknownOutcome, UsageError
from headwater_core.partition import PartitionId
from tests.archival.builders import Agent, Directory
from tests.headwater_core.control.local_control import LocalControl
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.segments.builders import a_segment
from tests.manifests.builders import PARTITION, a_head, an_entry

WAIT_S = 20.0


class FlakyControl(LocalControl):
    """Fails with `failing` as long as that is set. `told`: every command that was tried."""

    def __init__(self, failing: Exception | None = None) -> None:
        super().__init__()
        self.failing, self.reported = failing, list[tuple[Record, ...]]()

    def publish(self, *records: Record, timeout_s: float = 0.0) -> None:
        self.reported.append(records)
        if self.failing:
            raise self.failing
        super().publish(*records, timeout_s=timeout_s)


@pytest.mark.parametrize(
    "error", [DiskFull("full"), TransientError("no leader"), UnknownOutcome("?"), UsageError("no"), Unauthorised("no")]
)
def test_no_error_of_the_control_log_stops_archiving(error: HeadwaterError, tmp_path: Path) -> None:
    directory = Directory(tmp_path / "logs")
    for base in (0, 10, 20):
        directory.segment(base, a_segment(base, 10))
    directory.high_watermark(30)
    control = FlakyControl(error)
    agent = Agent(directory.root, control=control)
    assert agent.run()[:-1] == ["claimed", "archived", "archived", "archived"]
    assert control.state().known_version(agent.partition) == 0
    control.failing = None
    agent.clock.advance(int(RETRY_S * 1000))
    agent.run()
    assert control.state().known_version(agent.partition) == agent.head.version


def test_a_control_log_that_failed_is_asked_again_only_after_a_while() -> None:
    control, clock = FlakyControl(TransientError("no leader")), ManualClock()
    announcer = Announcer(control, clock)
    head = a_head()
    announcer.announce(head)
    announcer.announce(head)
    assert len(control.reported) == 1
    clock.advance(int(RETRY_S * 1000))
    announcer.announce(head)
    assert len(control.reported) == 2


def test_what_the_control_log_knows_is_not_said_again() -> None:
    control = FlakyControl()
    announcer = Announcer(control, ManualClock())
    announcer.announce(a_head())
    announcer.announce(a_head())
    assert len(control.reported) == 1


def test_another_commit_of_a_version_that_the_control_log_knows_is_announced() -> None:
    control = FlakyControl()
    announcer = Announcer(control, ManualClock())
    announcer.announce(a_head(version=3))
    announcer.announce(a_head(an_entry(0, 9), version=3, commit_id="d" * 32))
    known = control.state().partition(PARTITION)
    assert known is not None
    assert (known.last_offset, known.commit_id) == (9, "d" * 32)


def test_after_a_failure_only_the_newest_head_of_each_partition_is_published() -> None:
    control, clock = FlakyControl(TransientError("no leader")), ManualClock()
    announcer = Announcer(control, clock)
    for version in range(1, 6):
        announcer.announce(a_head(an_entry(0, version), version=version))
    other = PartitionId(PARTITION.cluster_id, PARTITION.topic_id, 7, PARTITION.topic)
    announcer.announce(a_head(partition=other))
    control.failing = None
    clock.advance(int(RETRY_S * 1000))
    announcer.publish_due()
    assert [(record.partition, record.version) for record in control.reported[-1] if isinstance(record, Advanced)] == [(3, 5), (7, 1)]
    announcer.publish_due()
    assert len(control.reported) == 2


def test_what_another_agent_holds_or_is_present_is_not_retired() -> None:
    control = FlakyControl()
    announcer = Announcer(control, ManualClock())
    mine, gone, others = (PartitionId(PARTITION.cluster_id, PARTITION.topic_id, number, PARTITION.topic) for number in range(3))
    for partition, writer in ((mine, "agent-a"), (gone, "agent-a"), (others, "agent-b")):
        announcer.announce(a_head(partition=partition, version=4, writer=writer))
    announcer.retire_absent({mine}, "agent-a")
    assert {partition for partition, _ in control.state().partitions()} == {mine, others}
    assert announcer.known_version(gone) == 4
    reported = len(control.reported)
    announcer.retire_absent({mine}, "agent-a")
    announcer.announce(a_head(partition=gone, version=4))
    assert len(control.reported) == reported
    announcer.announce(a_head(partition=gone, version=5))
    assert len(list(control.state().partitions())) == 3


def test_what_is_gone_travels_in_commands_of_its_own() -> None:
    control, clock = FlakyControl(), ManualClock()
    announcer = Announcer(control, clock)
    other = PartitionId(PARTITION.cluster_id, PARTITION.topic_id, 7, PARTITION.topic)
    announcer.announce(a_head(writer="agent-a"))
    control.failing = TransientError("no leader")
    announcer.retire_absent(set(), "agent-a")
    announcer.announce(a_head(partition=other))
    control.failing = None
    clock.advance(int(RETRY_S * 1000))
    announcer.publish_due()
    assert [[type(record) for record in command] for command in control.reported[-2:]] == [[Retired], [Advanced]]


def test_no_step_waits_for_a_control_log_that_does_not_answer() -> None:
    asked, answer = threading.Event(), threading.Event()

    class Hanging(LocalControl):
        def publish(self, *records: Record, timeout_s: float = 0.0) -> None:
            asked.set()
            assert answer.wait(WAIT_S)
            super().publish(*records)

    control = Hanging()
    announcer = Announcer(control, SystemClock())
    announcer.start()
    announcer.announce(a_head(version=1))
    assert asked.wait(WAIT_S)
    for version in (2, 3):
        announcer.announce(a_head(version=version))  # would never return if it waited
    assert announcer.known_version(PARTITION) == 0
    answer.set()
    announcer.close()
    assert announcer.known_version(PARTITION) == 3


def test_what_is_announced_together_is_one_command() -> None:
    commands: list[int] = []

    class Counting(LocalControl):
        def publish(self, *records: Record, timeout_s: float = 0.0) -> None:
            commands.append(len(records))
            super().publish(*records)

    announcer = Announcer(Counting(), SystemClock())
    announcer.start()
    for number in range(50):
        announcer.announce(msgspec.structs.replace(a_head(), partition=number))
    announcer.close()
    assert sum(commands) == 50
    assert len(commands) <= 5, "one command each would be 50 syncs"


def test_the_thread_survives_an_unforeseen_error() -> None:
    tried = threading.Event()

    class Broken(LocalControl):
        def publish(self, *records: Record, timeout_s: float = 0.0) -> None:
            tried.set()
            raise ZeroDivisionError

    clock = ManualClock()
    control = Broken()
    announcer = Announcer(control, clock)
    announcer.start()
    announcer.announce(a_head())
    assert tried.wait(WAIT_S)
    announcer.close()


def test_the_end_publishes_what_is_due() -> None:
    control = FlakyControl()
    announcer = Announcer(control, SystemClock())
    announcer.start()
    announcer.announce(a_head(version=9))
    announcer.close()
    announcer.close()
    assert announcer.known_version(PARTITION) == 9


def test_a_head_is_announced_as_it_stands() -> None:
    head = a_head(an_entry(10, 19), version=7, fence=3, writer="agent-b")
    for record in (advanced_of(head), claim_of(head)):
        assert record.partition_id == head.partition_id
        assert (record.version, record.fence, record.writer) == (7, 3, "agent-b")
        assert (record.start_offset, record.last_offset) == (10, 19)
