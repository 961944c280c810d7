"""Trouble is written once, then counted; what is news is always written."""

from typing import Any

import pytest

from headwater.repeated_events import FORGOTTEN_S, LINES_MAX, OPPOSITES, REASONS_MAX, SUBJECTS_MAX, WINDOW_S, RepeatedEvents, Summary
from tests.headwater_core.manual_clock import ManualClock


class Log:
    """Counts what would be written."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.repeated = RepeatedEvents(self.clock)

    def warn(self, event: str = "request_failed", *, level: str = "warning", **fields: Any) -> bool:
        return self.repeated.is_news(level, {"event": event, **fields})

    def after(self, seconds: float) -> list[Summary]:
        self.clock.advance(int(seconds * 1000))
        return self.repeated.summaries()


@pytest.fixture
def log() -> Log:
    return Log()


def test_the_same_trouble_is_written_once_and_summed_up_each_minute(log: Log) -> None:
    assert log.warn(partition="soup:0", reason="no answer in 3 s, port 4711", api="Fetch")
    for port in range(10):
        assert not log.warn(partition="soup:0", reason=f"no answer in {port} s, port {port}", api="Fetch")
    assert log.after(WINDOW_S - 1) == []
    fields = {"partition": "soup:0", "reason": "no answer in 9 s, port 9", "api": "Fetch", "repeats": 10, "subjects": 1}
    assert log.after(1) == [Summary("warning", "request_failed", fields)]
    assert log.after(WINDOW_S) == []  # told once
    assert not log.warn(partition="soup:0", reason="no answer in 3 s, port 1", api="Fetch")
    [summary] = log.after(WINDOW_S)
    assert summary.fields["repeats"] == 1


@pytest.mark.parametrize(
    "other",
    [{"reason": "access denied"}, {"event": "read_fell_back"}, {"api": "ListOffsets"}, {"level": "error"}],
    ids=lambda other: next(iter(other)),
)
def test_another_trouble_is_news(log: Log, other: dict[str, str]) -> None:
    first = {"event": "request_failed", "partition": "soup:0", "reason": "no answer", "api": "Fetch"}
    assert log.warn(**first)
    assert log.warn(**(first | other))
    assert not log.warn(**first)  # nor is the first one again


def test_information_is_always_news(log: Log) -> None:
    assert all(log.warn("run_archived", level="info", partition="soup:0") for _ in range(100))
    assert log.after(WINDOW_S) == []


def test_what_another_partition_has_in_the_same_minute_is_counted(log: Log) -> None:
    assert log.warn("archive_postponed", partition="soup:0", reason="no route")
    assert not log.warn("archive_postponed", partition="soup:1", reason="no route")
    [summary] = log.after(WINDOW_S)
    assert (summary.fields["partition"], summary.fields["repeats"], summary.fields["subjects"]) == ("soup:1", 1, 1)
    assert log.warn("archive_postponed", partition="soup:2", reason="no route")


def test_the_stores_trouble_is_one_whatever_it_befalls(log: Log) -> None:
    url, endpoint = "s3://bucket/archive", "http://10.0.0.1:9000/bucket/archive"
    told = [
        log.warn("archive_postponed", partition=partition, reason=reason)
        for partition, key in (("soup:0", "data/1a/soup/x.log"), ("team.salad:10", "data/2b/team.salad/y.log"))
        for reason in (
            f"{url}/{key}: 503 SlowDown: busy",
            f'{url}/{key}: Connection was closed before we received a valid response from endpoint URL: "{endpoint}/{key}".',
            f"{key} may yet appear: {url}/{key}: 500 InternalError: sorry",
            f"{partition}: commit 00c0ffee00c0ffee: {url}/{key}: 503 SlowDown: busy",
        )
    ]
    assert told == [True] * 4 + [False] * 4
    [summary] = log.after(WINDOW_S)
    assert (summary.fields["repeats"], summary.fields["subjects"]) == (4, 1)


def test_trouble_that_goes_on_is_a_line_a_minute_however_many_have_it(log: Log) -> None:
    written = 0
    for second in range(600):
        written += log.warn("archive_postponed", partition=f"soup:{second}", reason="no route")
        written += len(log.after(1))
    assert written == 1 + 600 / WINDOW_S


def test_what_a_person_must_see_to_is_reported_of_each_partition(log: Log) -> None:
    written = [log.warn("archive_stopped", level="error", partition=f"soup:{number}", reason="damage") for number in range(LINES_MAX + 7)]
    assert written == [True] * LINES_MAX + [False] * 7
    [summary] = log.after(WINDOW_S)
    assert (summary.fields["repeats"], summary.fields["subjects"]) == (7, 7)
    assert log.warn("archive_stopped", level="error", partition="soup:99", reason="damage")  # a new minute


def test_one_events_flood_hides_no_other_event(log: Log) -> None:
    for number in range(LINES_MAX * 2):
        log.warn("archive_postponed", partition=f"soup:{number}", reason="no route")
    assert log.warn("archive_stopped", level="error", partition="soup:0", reason="damage")


@pytest.mark.parametrize(("trouble", "end"), OPPOSITES)
def test_trouble_that_comes_back_after_its_end_is_news(log: Log, trouble: str, end: str) -> None:
    for _ in range(3):
        assert log.warn(trouble, level="error", partition="soup:0", reason="damage")
        assert not log.warn(trouble, level="error", partition="soup:0", reason="damage")
        assert log.warn(end, level="info", partition="soup:0")
    assert log.warn(trouble, level="error", partition="soup:1", reason="damage")
    assert not log.warn(trouble, level="error", partition="soup:1", reason="damage")  # the end was another partition's


def test_the_end_of_an_outage_is_a_few_lines_too(log: Log) -> None:
    written = [log.warn("archive_resumed", level="info", partition=f"soup:{number}") for number in range(1000)]
    assert sum(written) == LINES_MAX


def test_trouble_that_was_away_for_long_is_news(log: Log) -> None:
    assert log.warn(partition="soup:0", reason="no answer")
    log.after(FORGOTTEN_S - 1)
    assert not log.warn(partition="soup:0", reason="no answer")
    log.after(FORGOTTEN_S)
    assert log.warn(partition="soup:0", reason="no answer")


def test_a_clients_ports_are_one_subject_and_its_address_is_not(log: Log) -> None:
    assert log.warn("malformed_request", peer="10.0.0.1:4711", reason="frame of -1 bytes")
    log.after(WINDOW_S)
    assert not log.warn("malformed_request", peer="10.0.0.1:4712", reason="frame of -7 bytes")
    log.after(WINDOW_S)
    assert log.warn("malformed_request", peer="10.0.0.2:4711", reason="frame of -1 bytes")


def test_two_defects_are_told_apart_by_their_exceptions(log: Log) -> None:
    assert log.warn("archive_failed", level="error", partition="soup:0", exc_info=ValueError("a"))
    assert log.warn("archive_failed", level="error", partition="soup:0", exc_info=KeyError("a"))
    assert not log.warn("archive_failed", level="error", partition="soup:0", exc_info=ValueError("a"))
    [summary] = log.after(WINDOW_S)
    assert "exc_info" not in summary.fields


def test_memory_is_bounded_whatever_clients_say(log: Log) -> None:
    for number in range(SUBJECTS_MAX + 100):
        log.warn(partition=f"soup:{number}", reason="no answer")
        log.warn("produce_refused", client_id="x" * number)
    seen = log.repeated._seen_s
    assert len(seen) <= SUBJECTS_MAX
    assert max(map(len, seen.values())) <= REASONS_MAX


def test_a_summary_is_written_as_it_is(log: Log) -> None:
    assert all(log.warn(partition="soup:0", reason="no answer", repeats=3) for _ in range(2))


def test_at_the_end_every_count_is_written(log: Log) -> None:
    for _ in range(3):
        log.warn(partition="soup:0", reason="no answer")
    [summary] = log.repeated.summaries(all_of_them=True)
    assert summary.fields["repeats"] == 2
    assert log.repeated.summaries(all_of_them=True) == []
