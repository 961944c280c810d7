"""The cut of a recovery plan, as rows for people: where logs end before their archives, and what was brought to their ends."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from headwater.columns import Column
from headwater.units import duration_text
from headwater_core.clock import time_text
from headwater_core.counts import count_text
from recovery import RecoveryPlan
from recovery.cut import PartitionCut

CUT = (
    Column("topic", "topic"),
    Column("partition", "partition", numeric=True),
    Column("head", "archive end", numeric=True),
    Column("bound", "bound", numeric=True),
    Column("end", "cut at", numeric=True),
    Column("newest", "newest record", leaves=1),
    Column("rpo", "RPO", leaves=1),
    Column("transactions", "open transactions"),
    Column("offsets", "group offsets beyond", numeric=True),
)


def cut_rows(made: RecoveryPlan) -> Iterator[dict[str, Any]]:
    """Of the partitions that end early, or where something was brought to their end. `recover plan -o json` has all."""
    if made.cut is None:
        return
    outcomes: dict[tuple[str, int], Counter[str]] = {}
    for each in made.cut.transactions:
        outcomes.setdefault((each.topic, each.partition), Counter())[each.outcome] += 1
    ahead = Counter((each.topic, each.partition) for each in made.offsets_ahead)
    for cut in made.cut.partitions:
        place = cut.topic, cut.partition
        if cut.end < cut.head or place in outcomes or place in ahead:
            yield _row(cut) | {
                "transactions": ", ".join(f"{count} {what}" for what, count in sorted(outcomes.get(place, Counter()).items())),
                "offsets": ahead[place] or None,
            }


def _row(cut: PartitionCut) -> dict[str, Any]:
    return {
        "topic": cut.topic,
        "partition": cut.partition,
        "head": cut.head,
        "bound": cut.bound,
        "end": cut.end,
        "newest": time_text(cut.last_timestamp_ms) if cut.last_timestamp_ms is not None else "",
        "rpo": "" if cut.rpo_ms is None else f"{'at most ' * (cut.rpo_from == 'snapshot')}{duration_text(cut.rpo_ms / 1000)}",
    }


def rpo_summary(made: RecoveryPlan) -> str:
    """The worst of all partitions, by each reference; "" where none is known."""
    said = []
    for reference, text in (("archive", "{} before the newest archived record"), ("snapshot", "at most {} before the snapshot")):
        found = [
            (each.rpo_ms, each)
            for each in (made.cut.partitions if made.cut else ())
            if each.rpo_from == reference and each.rpo_ms is not None
        ]
        if found:
            worst_ms, worst = max(found, key=lambda each: each[0])
            said.append(f"{text.format(duration_text(worst_ms / 1000))} ({worst.topic}:{worst.partition})")
    unknown = sum(each.rpo_ms is None for each in made.cut.partitions) if made.cut else 0
    if said and unknown:
        said.append(f"not known of {count_text(unknown, 'partition')} without a record that has a time")
    return f"RPO, the worst: {'; '.join(said)}" if said else ""


def cut_summary(made: RecoveryPlan) -> str:
    """In a line; "" where the plan has no cut."""
    cut = made.cut
    if cut is None:
        return ""
    outcomes = Counter(each.outcome for each in cut.transactions)
    said = [f"before the end of the archive: {len(cut.shortened)} of {count_text(len(cut.partitions), 'partition')}"]
    said.append(
        ", ".join(f"{count_text(count, 'open transaction')} {what}" for what, count in sorted(outcomes.items())) or "no transaction is open"
    )
    if cut.unfinished:
        who = "the recovered coordinator ends" if made.request.options.open_transactions == "keep" else "ended for their coordinator:"
        said.append(f"{who} {len(cut.unfinished)}")
    if cut.torn:
        said.append(f"restored in part: {count_text(len(cut.torn), 'transaction')}")
    kept = ", kept as requested" if made.request.options.keep_offsets else ", set back"
    said.append(f"{count_text(len(made.offsets_ahead), 'group offset')} beyond{kept if made.offsets_ahead else ''}")
    ids = f"; new producer ids from {cut.next_producer_id} on" if made.running is None else ""
    return f"cut: {'; '.join(said)}{ids}"
