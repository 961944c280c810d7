"""The registry of operations: what it shows, forgets and refuses, for any order of calls and times."""

import threading
from itertools import count
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from headwater.admin import operations as module
from headwater.admin.operation_routes import LIMIT_MAX, RESULTS_MAX
from headwater.admin.operations import (
    KEPT_S,
    PACE_S,
    Operation,
    OperationKey,
    Operations,
    OperationState,
    RunningOperation,
    TooManyOperations,
    eta_s,
    minted_id,
)
from headwater_core.errors import AlreadyExists, HeadwaterError, Locked, TransientError, UsageError

PAGE_BYTES = 8 << 20  # an agent may take so much for an answer


class ManualClock:
    def __init__(self) -> None:
        self.now_s = 1_700_000_000.0

    def now_ms(self) -> int:
        return round(self.now_s * 1000)

    def monotonic_s(self) -> float:
        return self.now_s


def a_registry(clock: ManualClock | None = None) -> Operations:
    numbers = count()
    return Operations(clock or ManualClock(), lambda: f"operation-{next(numbers)}")


def every(operations: Operations, **filters: Any) -> list[Operation]:
    """All pages."""
    found: list[Operation] = []
    after = None
    while True:
        page = operations.list(after=after, limit=3, **filters)
        found += page.operations
        if not isinstance(page.next_after, str):
            return found
        started_ms, _, last = page.next_after.partition("-")
        after = OperationKey(int(started_ms), last)


def test_one_that_runs_shows_how_far_it_is_and_how_long_it_will_take() -> None:
    clock = ManualClock()
    operations = a_registry(clock)
    running = operations.begin("archive", {"selection": "orders"}, unit="partitions")
    running.advance(0, 10)
    assert operations.find(running.id) == Operation(
        id="operation-0",
        verb="archive",
        arguments={"selection": "orders"},
        state=OperationState.RUNNING,
        by="agent",
        started_ms=clock.now_ms(),
        total=10,
        unit="partitions",
    )
    clock.now_s += 20
    running.advance(4)
    found = operations.find(running.id)
    assert found is not None
    assert (found.done, found.total, found.eta_s) == (4, 10, 30.0)
    running.end({"objects": 7})
    found = operations.find(running.id)
    assert found is not None
    assert (found.state, found.eta_s, found.results, found.ended_ms) == (OperationState.DONE, None, {"objects": 7}, clock.now_ms())


def test_the_rest_of_a_pace_means_nothing_too_soon_or_without_a_total() -> None:
    assert eta_s(0, 10, 100) is None
    assert eta_s(5, 10, PACE_S - 0.1) is None
    assert eta_s(5, 10, 100) == 100
    assert eta_s(12, 10, 100) == 0


def test_the_pace_begins_with_the_first_word() -> None:
    clock = ManualClock()
    operations = a_registry(clock)
    running = operations.begin("verify", {})
    clock.now_s += 1000  # others come first
    running.advance(40, 100)
    clock.now_s += 10
    running.advance(50)
    assert [each.eta_s for each in every(operations)] == [50.0]
    without = operations.begin("archive", {})
    without.advance(5)
    clock.now_s += 10
    without.advance(9)
    assert every(operations)[0].eta_s is None


def test_what_is_cancelled_ends_by_itself_and_is_no_failure() -> None:
    operations = a_registry()
    running = operations.begin("gc", {})
    told = []
    running.on_cancel = lambda: told.append(1)
    for _ in range(2):
        found = operations.cancel(running.id)
        assert found is not None
        assert (found.state, found.cancelling) == (OperationState.RUNNING, True)
    assert running.cancelled.is_set()
    assert told == [1]
    running.fail(TransientError("stopped before its end"))
    found = operations.cancel(running.id)
    assert found is not None
    assert (found.state, found.cancelling, found.error, found.exit_code) == (OperationState.CANCELLED, False, "stopped before its end", 5)
    assert operations.cancel("absent-operation") is None


def test_an_error_of_its_own_is_a_failure_though_it_was_cancelled_as_well() -> None:
    operations = a_registry()
    running = operations.begin("gc", {})
    operations.cancel(running.id)
    running.fail(Locked("held by another"))
    found = operations.find(running.id)
    assert found is not None
    assert (found.state, found.exit_code) == (OperationState.FAILED, 7)


def test_one_of_a_silent_process_is_lost_and_comes_back_with_a_word_of_it() -> None:
    clock = ManualClock()
    operations = a_registry(clock)
    running = operations.begin("verify", {}, by="process 17", silence_max_s=60)
    clock.now_s += 50
    running.advance(1, 3)
    clock.now_s += 50
    assert [each.state for each in every(operations)] == [OperationState.RUNNING]
    clock.now_s += 50
    assert [(each.state, each.error) for each in every(operations)] == [(OperationState.LOST, None)]
    running.advance(2, 3)
    assert [each.done for each in every(operations)] == [1]
    back = operations.running(running.id)
    assert back is running
    back.advance(3, 3)
    back.end()
    assert [(each.state, each.done) for each in every(operations)] == [(OperationState.DONE, 3)]
    assert operations.running(running.id) is None


def test_one_that_was_cancelled_and_lost_comes_back_as_cancelled() -> None:
    clock = ManualClock()
    operations = a_registry(clock)
    running = operations.begin("verify", {}, by="process 17", silence_max_s=60)
    operations.cancel(running.id)
    clock.now_s += 100
    assert [(each.state, each.cancelling) for each in every(operations)] == [(OperationState.LOST, False)]
    assert operations.running(running.id) is running
    assert [(each.state, each.cancelling) for each in every(operations)] == [(OperationState.RUNNING, True)]


def test_an_id_is_taken_once_and_says_nothing_but_an_id() -> None:
    operations = a_registry()
    operations.begin("archive", {}, operation_id="20260131T120000.123Z-9f86d081").end()
    with pytest.raises(AlreadyExists):
        operations.begin("archive", {}, operation_id="20260131T120000.123Z-9f86d081")
    for wrong in ("", "short", "../../etc/passwd", ".hidden-operation", "a b c d e f g h", "x" * 65, "ümlaut-operation", "operation\n"):
        with pytest.raises(UsageError):
            operations.begin("archive", {}, operation_id=wrong)
    with pytest.raises(UsageError):
        operations.begin("archive", {"selection": "x" * 10_000})


@pytest.mark.parametrize("value", [[[]] * 2700, {str(each): None for each in range(500)}, "x" * 8190])
def test_arguments_are_few_and_short(value: object) -> None:
    operations = a_registry()
    with pytest.raises(UsageError, match="arguments have at most"):
        operations.begin("verify", {"value": value})
    assert every(operations) == []
    operations.begin("recover", {"topics": [f"topic-{each}" for each in range(200)], "into": "/restored"})


def test_the_largest_page_of_the_largest_operations_is_a_few_megabytes() -> None:
    operations = a_registry()
    for _ in range(LIMIT_MAX):
        running = operations.begin("verify", {"x": "\x01" * 1363}, by="process 1")
        results = {f"{each:02}" + "x" * 62: 2**63 - 1 for each in range(RESULTS_MAX)}
        operations.finish(running, OperationState.FAILED, "\x01" * 10_000, 1, results)
    assert len(msgspec.json.encode(operations.list(limit=LIMIT_MAX))) < PAGE_BYTES


def test_no_more_run_than_may_and_other_processes_take_no_place_of_the_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RUNNING_MAX", 2)
    operations = a_registry()
    first, _ = (operations.begin("archive", {}) for _ in range(2))
    with pytest.raises(TooManyOperations):
        operations.begin("pause", {})
    for _ in range(2):
        operations.begin("verify", {}, by="process 17")
    with pytest.raises(TooManyOperations):
        operations.begin("verify", {}, by="process 18")
    first.end()
    operations.begin("pause", {})


def test_a_look_is_forgotten_at_its_end_and_no_event_tells_of_it() -> None:
    operations = a_registry()
    with capture_logs() as events:
        look = operations.begin("explain", {}, is_kept=False)
        assert [each.verb for each in every(operations)] == ["explain"]
        look.end()
        assert every(operations) == []
        work = operations.begin("archive", {})
        work.fail(TransientError("no route to host"))
        work.end()  # too late
    assert [(each["event"], each["operation"]) for each in events] == [("operation_started", work.id), ("operation_ended", work.id)]
    assert (events[1]["state"], events[1]["reason"]) == ("failed", "no route to host")


def test_ids_are_in_the_order_of_their_time() -> None:
    assert minted_id(1_769_860_800_123, 0x9F86D081) == "20260131T120000.123Z-9f86d081"
    moments = [0, 999, 1000, 1_769_860_800_123, 1_769_860_800_124, 4_000_000_000_000]
    assert sorted(minted_id(each, 2**32 - 1 - at) for at, each in enumerate(moments)) == [
        minted_id(each, 2**32 - 1 - at) for at, each in enumerate(moments)
    ]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.booleans()),
        st.tuples(st.just("wait"), st.sampled_from([0.001, 1, 45, 100, KEPT_S / 2, KEPT_S * 2])),
        st.tuples(st.sampled_from(["advance", "end", "fail", "cancel"]), st.integers(0, 9)),
    ),
    max_size=60,
)


@given(STEPS)
def test_nothing_that_runs_is_forgotten_what_has_ended_stays_so_and_both_are_bounded(steps: list[tuple[str, Any]]) -> None:
    clock, most = ManualClock(), 4
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "OPERATIONS_MAX", most)
        operations = a_registry(clock)
        begun: list[RunningOperation] = []
        silent: dict[str, bool] = {}
        ended: dict[str, OperationState] = {}
        for step, value in steps:
            if step == "begin" and len(begun) < 10:
                begun.append(operations.begin("archive", {}, by="process 1" if value else "agent", silence_max_s=60 if value else None))
                silent[begun[-1].id] = value
            elif step == "wait":
                clock.now_s += value
            elif begun:
                chosen = begun[value % len(begun)]
                match step:
                    case "advance":
                        chosen.advance(value, 5)
                    case "end":
                        chosen.end()
                    case "fail":
                        chosen.fail(TransientError("x"))
                    case "cancel":
                        operations.cancel(chosen.id)
            shown = every(operations)
            assert [each.id for each in shown] == [
                each.id for each in sorted(shown, key=lambda each: (each.started_ms, each.id), reverse=True)
            ]
            assert len({each.id for each in shown}) == len(shown)
            now = {each.id: each.state for each in shown}
            over = [each for each in shown if each.state is not OperationState.RUNNING]
            assert len(over) <= most
            for each in shown:
                assert operations.find(each.id) == each
                assert each.eta_s is None or (each.eta_s >= 0 and each.state is OperationState.RUNNING)
                assert (each.ended_ms is None) == (each.state is OperationState.RUNNING)
                assert each.ended_ms is None or clock.now_ms() - each.ended_ms <= KEPT_S * 1000 + 1
                assert each.id not in ended or ended[each.id] == each.state
                if each.state is OperationState.LOST:
                    assert silent[each.id]
            ended |= {each.id: each.state for each in over}
            assert all(each.id in now for each in begun if each.id not in ended and not silent[each.id])


def test_threads_that_advance_and_end_it_together_leave_one_end() -> None:
    operations = a_registry()
    running = operations.begin("archive", {})
    go = threading.Barrier(8)

    def work(at: int) -> None:
        go.wait()
        for done in range(50):
            running.advance(done, 50)
        (running.end if at % 2 else lambda: running.fail(TransientError("x")))()

    threads = [threading.Thread(target=work, args=(at,)) for at in range(8)]
    with capture_logs() as events:
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert [each["event"] for each in events] == ["operation_ended"]
    found = operations.find(running.id)
    assert found is not None
    assert found.state in (OperationState.DONE, OperationState.FAILED)


def test_credentials_in_arguments_and_errors_are_not_shown() -> None:
    operations = Operations(ManualClock(), module.new_operation_id)
    running = operations.begin("export", {"to": "s3://key:secret@bucket"})
    running.fail(HeadwaterError("https://me:secret@host refused"))
    assert (running.facts.arguments, running.facts.error) == ({"to": "s3://***@bucket"}, "https://***@host refused")
