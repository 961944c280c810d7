"""What people see of a status: per topic, worst first, summed up; and what an alarm rests on."""

from typing import Any

import pytest

from headwater.overview import check_lag, partition_rows, summary, topic_rows, worst_first
from headwater_core.errors import NothingExamined, VerificationFailed

ROW = {
    "topic": "orders",
    "partition": 0,
    "archive_start": 0,
    "local_start": 0,
    "last_offset": 9,
    "high_watermark": 10,
    "lag_bytes": 0,
    "lag_s": 0.0,
    "archived_bytes": 100,
    "cached_bytes": 0,
    "known_age_s": 0.0,
    "state": "archived",
    "reason": "caught up",
}


def a_row(topic: str = "orders", partition: int = 0, state: str = "archived", lag_s: float | None = 0.0, **rest: Any) -> dict[str, Any]:
    lag_bytes = None if lag_s is None else round(lag_s) * 10
    return ROW | {"topic": topic, "partition": partition, "state": state, "lag_s": lag_s, "lag_bytes": lag_bytes} | rest


CURRENT = a_row()
WAITING = a_row(partition=3, state="waiting", lag_s=44.0, reason="not sealed")
DUE = a_row("bills", 1, "due", 5.0)
STOPPED = a_row("menu", 2, "stopped", reason="a hole")
UNKNOWN = a_row("menu", 0, "waiting", None, reason="no checkpoint")
ELSEWHERE = a_row("old", 0, "archive-only", None)
RECOVERED = a_row("back", 0, "recovered", 2.0)
EXCLUDED = a_row("debug", 0, "excluded", None, reason="archive = off")


def names(rows: list[Any]) -> list[str]:
    return [f"{row['topic']}:{row['partition']}" for row in rows]


def test_trouble_comes_first_then_what_is_unknown_then_the_longest_lag() -> None:
    internal = a_row("__consumer_offsets")
    rows = [internal, ELSEWHERE, CURRENT, DUE, WAITING, UNKNOWN, STOPPED]
    assert names(worst_first(rows)) == ["menu:2", "menu:0", "orders:3", "bills:1", "old:0", "orders:0", "__consumer_offsets:0"]


def test_a_topic_is_as_its_worst_partition() -> None:
    [orders, bills] = topic_rows([CURRENT, WAITING, DUE])
    assert (orders["topic"], orders["partitions"], orders["current"], orders["archived_bytes"]) == ("orders", 2, 1, "200 B")
    assert (orders["state"], orders["reason"], orders["worst"]) == ("waiting", "not sealed", 3)
    assert (orders["lag_bytes"], orders["lag_time"]) == ("440 B", "44.0 s")
    assert bills["topic"] == "bills"


def test_what_is_not_followed_of_the_settings_of_offload_is_said_and_counted() -> None:
    late = a_row("bills", 0, trigger_trouble="offload_after is not below retention.ms")
    full = a_row("bills", 1, "waiting", 5.0, reason="a stream is open", stream_trouble="the offload buffer is full")
    rows = partition_rows([late, full], explained=False)
    assert [row["reason"] for row in rows] == [
        "a stream is open; nothing more is taken: the offload buffer is full",
        "not applied: offload_after is not below retention.ms",
    ]
    [known] = partition_rows([full | {"reason": "the offload buffer is full"}], explained=True)
    assert known["reason"] == "the offload buffer is full"
    assert summary([late, full]).endswith("trigger not applied to 1, offload buffer full for 1")
    assert "applied" not in summary([full])
    kept = a_row("bills", 2, collection_trouble="4 objects stay: restore it")
    assert [row["reason"] for row in partition_rows([kept], explained=False)] == ["4 objects stay: restore it"]
    apart = a_row("bills", 3, merge_trouble="chunks of 2 full segments stay")
    assert [row["reason"] for row in partition_rows([apart], explained=False)] == ["not merged: chunks of 2 full segments stay"]
    assert summary([apart]).endswith("not all merged of 1")
    assert summary([kept]).endswith("orphans kept of 1")


def test_a_lag_that_nobody_can_tell_is_called_unknown() -> None:
    [menu] = topic_rows([STOPPED, UNKNOWN])
    assert (menu["lag_bytes"], menu["lag_time"], menu["state"]) == ("unknown", "unknown", "stopped")


@pytest.mark.parametrize("row", [ELSEWHERE, RECOVERED, EXCLUDED])
def test_where_nothing_can_lag_no_lag_is_shown(row: dict[str, Any]) -> None:
    [topic] = topic_rows([row])
    assert (topic["lag_bytes"], topic["lag_time"], topic["worst"], topic["current"]) == ("", "", None, None)


def test_what_is_archived_needs_no_reason_unless_it_is_asked_for() -> None:
    [shown] = topic_rows([CURRENT])
    [asked_for] = partition_rows([CURRENT], explained=True)
    assert (shown["reason"], asked_for["reason"]) == ("", "caught up")


def test_a_size_that_is_not_known_yet_is_not_taken_for_nothing() -> None:
    [topic] = topic_rows([CURRENT, a_row(partition=1, archived_bytes=None)])
    assert topic["archived_bytes"] == "unknown"


def test_one_partition_says_why_no_more_of_it_was_released() -> None:
    row = CURRENT | {"release_reason": "not every replica is in sync"}
    [asked_for] = partition_rows([row], explained=True)
    [shown] = partition_rows([row], explained=False)
    assert (asked_for["reason"], shown["reason"]) == ("caught up; release: not every replica is in sync", "")


def test_the_summary_names_the_group_for_which_most_waits() -> None:
    blocked = {"release_group": "bills", "release_group_offset": 15, "release_blocked_ms": 0, "release_blocked_bytes": 3 << 20}
    rows = [CURRENT | blocked, CURRENT | blocked | {"partition": 1}, CURRENT | blocked | {"partition": 2, "release_group": "mail"}]
    assert summary(rows).endswith("release waits for group bills (6.0 MiB), and for 1 more")
    assert "release" not in summary([CURRENT])


def test_equal_numbers_mean_caught_up() -> None:
    empty = a_row(last_offset=None, archive_start=54, high_watermark=54)
    new = a_row(last_offset=None, archive_start=None, high_watermark=3)
    found = partition_rows([CURRENT, empty, new], explained=False)
    assert [(row["archive_end"], row["high_watermark"]) for row in found] == [(10, 10), (54, 54), (None, 3)]


def test_one_line_sums_up() -> None:
    assert summary([CURRENT]) == "1 partition, 1 current"
    assert summary([CURRENT, DUE, WAITING]) == "3 partitions, 1 current, 1 waiting, 1 due, worst lag 44.0 s (orders:3)"
    assert summary([CURRENT, UNKNOWN, STOPPED]) == "3 partitions, 1 current, 1 stopped, 1 waiting, lag unknown of 1"
    assert summary([CURRENT, EXCLUDED]) == "2 partitions, 1 current, 1 excluded"
    assert summary([RECOVERED, ELSEWHERE]) == "2 partitions, 1 recovered, 1 archive-only"
    held_back = [row | {"store_try_ms": 1_700_000_000_000} for row in (CURRENT, DUE)]
    assert summary(held_back).endswith("worst lag 5.0 s (bills:1), the store is unavailable, next try at 2023-11-14T22:13:20Z")


@pytest.mark.parametrize(
    ("rows", "lag_max_s"),
    [
        ([CURRENT], 0.0),
        ([CURRENT, WAITING], 44.0),
        ([CURRENT, ELSEWHERE, RECOVERED, EXCLUDED], 0.0),
        ([a_row(state="standby", lag_s=3.0)], 4.0),
    ],
)
def test_what_lags_no_more_than_allowed_passes(rows: list[dict[str, Any]], lag_max_s: float) -> None:
    check_lag(rows, lag_max_s)


@pytest.mark.parametrize(
    "row", [WAITING, UNKNOWN, STOPPED, *(a_row(state=each) for each in ("needs replacement", "needs upgrade", "behind", "unknown"))]
)
def test_what_lags_more_is_stopped_or_unknown_is_an_alarm(row: dict[str, Any]) -> None:
    with pytest.raises(VerificationFailed, match=f"{row['topic']}:{row['partition']} "):
        check_lag([CURRENT, row], 43.9)


@pytest.mark.parametrize("rows", [[ELSEWHERE], [RECOVERED, ELSEWHERE], []])
def test_where_there_is_no_lag_to_measure_nothing_is_well(rows: list[dict[str, Any]]) -> None:
    with pytest.raises(NothingExamined):
        check_lag(rows, 1e9)


def test_one_partition_says_how_old_its_high_watermark_is() -> None:
    by_broker = {"high_watermark_source": "broker", "high_watermark_age_s": 0.04, "release_reason": "not every replica is in sync"}
    [row] = partition_rows([WAITING | by_broker], explained=True)
    assert row["reason"] == "not sealed; high watermark by the broker's answer of 0.0 s ago; release: not every replica is in sync"
    [row] = partition_rows([WAITING | by_broker], explained=False)
    assert row["reason"] == "not sealed"
    [row] = partition_rows([CURRENT | by_broker | {"release_reason": ""}], explained=True)
    assert row["reason"] == "caught up; high watermark by the broker's answer of 0.0 s ago"
