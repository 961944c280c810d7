"""The table of `headwater status` for people: one row per topic, worst first, and a summary.

Plain functions on rows of `headwater status -o json`.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from archival.watermark import WatermarkOrigin, WatermarkSource
from headwater.columns import Row, as_size
from headwater.units import duration_text, size_text
from headwater_core.clock import time_text
from headwater_core.counts import count_text
from headwater_core.errors import NothingExamined, Partial, VerificationFailed

TROUBLE = ("stopped", "needs replacement", "needs upgrade", "behind", "unknown")  # nothing is archived, or that is unknown
UNMEASURED = ("archive-only", "excluded", "recovered")  # nothing of it is to be archived from here, so there is no lag
DAMAGED = "damaged"  # in the archive; archiving itself continues
UNKNOWN = "unknown"
_NAMED_MAX = 5  # partitions that a message names


def is_current(row: Row) -> bool:
    """Whether everything that is committed is archived."""
    return row["lag_bytes"] == 0 and row["state"] not in (*TROUBLE, DAMAGED) and _is_measured(row)


def worst_first(rows: Iterable[Row]) -> list[Row]:
    """Partitions in trouble first; then by lag time, unknown ones first; then by name, internal topics last."""

    def urgency(row: Row) -> tuple[Any, ...]:
        lag_s = 0.0 if not _is_measured(row) else math.inf if row["lag_s"] is None else row["lag_s"]
        return (
            row["state"] not in TROUBLE,
            row["state"] != DAMAGED,
            -lag_s,
            is_current(row),
            row["topic"].startswith("__"),
            row["topic"],
            row["partition"],
        )

    return sorted(rows, key=urgency)


def partition_rows(rows: Iterable[Row], *, explained: bool) -> list[dict[str, Any]]:
    """Rows for people: with the archive's end offset beside the high watermark, and `unknown` for unknown lags.

    explained  with a reason also for archived partitions
    """
    return [
        dict(row)
        | {
            "archive_end": _archive_end(row),
            "lag_bytes": _lag_bytes([row]),
            "lag_time": _lag_time([row]),
            "reason": _whole_reason(row) if explained else _reason(row),
        }
        for row in worst_first(rows)
    ]


def topic_rows(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """One row per topic: its worst partition's state and reason."""
    topics: dict[str, list[Row]] = {}
    for row in worst_first(rows):
        topics.setdefault(row["topic"], []).append(row)
    return [
        {
            "topic": topic,
            "partitions": len(partitions),
            "current": sum(map(is_current, partitions)) if any(map(_is_measured, partitions)) else None,
            "archived_bytes": _archived_bytes(partitions),
            "cached_bytes": sum(row["cached_bytes"] for row in partitions),
            "lag_bytes": _lag_bytes(partitions),
            "lag_time": _lag_time(partitions),
            "worst": partitions[0]["partition"] if _is_measured(partitions[0]) and not is_current(partitions[0]) else None,
            "state": partitions[0]["state"],
            "reason": _reason(partitions[0]),
        }
        for topic, partitions in topics.items()
    ]


def summary(rows: Sequence[Row]) -> str:
    """As in "512 partitions, 506 current, 6 waiting, worst lag 44.0 s (orders:3)", and when a store that does not answer is tried again.
    What a table of topics may not show is counted: of each only the worst partition has a reason there."""
    groups = Counter("current" if is_current(row) else row["state"] for row in worst_first(rows))
    counts = [f"{groups.pop('current')} current"] if "current" in groups else []
    counts += [f"{count} {state}" for state, count in groups.items()]
    measured = list(filter(_is_measured, rows))
    known = max((row for row in measured if row["lag_s"]), key=lambda row: float(row["lag_s"]), default=None)
    unknown = sum(row["lag_s"] is None for row in measured)
    lags = [f"worst lag {duration_text(known['lag_s'])} ({_name(known)})"] if known else []
    lags += [f"lag unknown of {unknown}"] if unknown else []
    tries_ms = [row["store_try_ms"] for row in rows if row.get("store_try_ms") is not None]
    held_back = [f"the store is unavailable, next try at {time_text(max(tries_ms))}"] if tries_ms else []
    troubles = [
        f"{words} {count}"
        for words, name in (
            ("trigger not applied to", "trigger_trouble"),
            ("offload buffer full for", "stream_trouble"),
            ("not all merged of", "merge_trouble"),
            ("orphans kept of", "collection_trouble"),
            ("damaged objects of", "damage"),
        )
        if (count := sum(bool(row.get(name)) for row in rows))
    ]
    waiting: Counter[str] = Counter()
    for row in rows:
        if row.get("release_group"):
            waiting[row["release_group"]] += row["release_blocked_bytes"]
    groups_behind = [f"release waits for group {group} ({size_text(size_bytes)})" for group, size_bytes in waiting.most_common(1)]
    groups_behind += [f"and for {len(waiting) - 1} more"] if len(waiting) > 1 else []
    return ", ".join([f"{len(rows)} partition{'s' * (len(rows) != 1)}", *counts, *lags, *troubles, *groups_behind, *held_back])


def held_back(store_try_ms: int) -> str:
    """Why nothing is archived while the agent leaves the store alone."""
    return f"archiving is held back: the store is unavailable for every partition, and is tried again at {time_text(store_try_ms)}"


def damage_text(keys: Collection[str]) -> str:
    """Say which objects are damaged in the store, and what to do."""
    first, more = min(keys), len(keys) - 1
    named = f"{first} and {count_text(more, 'more object')}" if more else first
    return (
        f"damaged in the store: {named}; see `headwater verify --data`, and restore the object from a version of the bucket or a copy "
        "(docs/runbook.md, HeadwaterObjectDamaged)"
    )


def missing_topics(damaged: Mapping[str, str]) -> Partial:
    """damaged: by topic, why its documents in the bucket cannot be read"""
    return Partial(
        "these topics are damaged in the archive, and some of their partitions may be missing here: "
        + "; ".join(f"{topic}: {why}" for topic, why in damaged.items())
    )


def check_lag(rows: Sequence[Row], lag_max_s: float) -> None:
    """Raises VerificationFailed when a partition lags more, is in trouble, or its lag is unknown; NothingExamined when no partition has a
    local log that a broker writes."""
    measured = list(filter(_is_measured, worst_first(rows)))
    if not measured:
        raise NothingExamined("no partition is to be archived from a local log that a broker writes: there is no lag to measure")
    late = [row for row in measured if row["state"] in TROUBLE or row["lag_s"] is None or row["lag_s"] > lag_max_s]
    if late:
        named = [f"{_name(row)} ({row['state']}, lag {_lag_time([row])})" for row in late[:_NAMED_MAX]]
        more = f" and {len(late) - _NAMED_MAX} more" if len(late) > _NAMED_MAX else ""
        raise VerificationFailed(f"not archived within {duration_text(lag_max_s)}: {', '.join(named)}{more}")


def _is_measured(row: Row) -> bool:
    return row["state"] not in UNMEASURED


def _name(row: Row) -> str:
    return f"{row['topic']}:{row['partition']}"


def _archive_end(row: Row) -> int | None:
    """The end offset, exclusive as a high watermark is. An empty archive ends at its start."""
    end: int | None = row["archive_start"] if row["last_offset"] is None else row["last_offset"] + 1
    return end


def _archived_bytes(rows: Iterable[Row]) -> str:
    """The sum; an agent that has just started does not know all of it yet."""
    values = [row["archived_bytes"] for row in rows]
    return UNKNOWN if None in values else as_size(sum(values))


def _lag_bytes(rows: Sequence[Row]) -> str:
    """The sum over partitions that can lag."""
    values = [row["lag_bytes"] for row in filter(_is_measured, rows)]
    return UNKNOWN if None in values else as_size(sum(values)) if values else ""


def _lag_time(rows: Sequence[Row]) -> str:
    """The largest of partitions that can lag."""
    values = [row["lag_s"] for row in filter(_is_measured, rows)]
    return UNKNOWN if None in values else duration_text(max(values)) if values else ""


def _whole_reason(row: Row) -> str:
    said = [str(row["reason"])]
    if row.get("high_watermark_source"):
        said.append(f"high watermark by {WatermarkOrigin(WatermarkSource(row['high_watermark_source']), row['high_watermark_age_s'])}")
    if row.get("release_reason"):
        said.append(f"release: {row['release_reason']}")
    return "; ".join([*said, *_troubles(row)])


def _reason(row: Row) -> str:
    """The reason, unless the state is `archived`: that says everything, apart from a setting that is not applied."""
    said = [row["reason"]] if row["state"] != "archived" else []
    return "; ".join([*said, *_troubles(row)])


def _troubles(row: Row) -> list[str]:
    """What a person should know of beside the state. A reason may say already that nothing more is taken."""
    said = [f"not applied: {row['trigger_trouble']}"] if row.get("trigger_trouble") else []
    if (full := row.get("stream_trouble")) and full not in str(row["reason"]):
        said.append(f"nothing more is taken: {full}")
    if row.get("merge_trouble"):
        said.append(f"not merged: {row['merge_trouble']}")
    if row.get("damage") and row["state"] != DAMAGED:
        said.append(str(row["damage"]))
    return [*said, row["collection_trouble"]] if row.get("collection_trouble") else said
