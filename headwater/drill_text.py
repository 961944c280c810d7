"""The report of a drill as text, for people and auditors: the same facts as its JSON."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import structlog

from headwater.drill.drill_report import Amount, ComparedWindow, DrillOutcome, DrillReport, PathSum
from headwater.drill.report_store import LastDrill, ReportStore
from headwater.units import duration_text, size_text
from headwater_core.clock import time_text
from headwater_core.counts import count_text

log = structlog.get_logger()

SHOWN_MAX = 50  # lines of one list; the JSON has all

_VERDICTS = {
    DrillOutcome.PASSED: "PASSED: everything that was drawn came back as it was archived",
    DrillOutcome.INCOMPLETE: "INCOMPLETE: what was drawn and compared came back as it was archived, and something is left out",
    DrillOutcome.FAILED: "FAILED",
    DrillOutcome.NOTHING: "FAILED: nothing was compared, so nothing is proven",
    DrillOutcome.UNFINISHED: "NOT CARRIED OUT",
}


def store_report(reports: ReportStore, report: DrillReport) -> tuple[Path, str]:
    """Write the report as JSON, and only then make its text and write that, too: nothing that fails in the text takes the report away.

    Returns the JSON's path, and the text, or why there is none. Raises what keeps the JSON from being written.
    """
    path = reports.add(report)
    try:
        text = report_text(report)
        reports.add_text(report, text)
    except Exception as error:  # of any kind: the verdict stands in the JSON
        log.exception("drill_text_failed", path=str(path))
        return path, f"the report could not be written as text: {error!r}; its JSON is {path}\n"
    return path, text


def report_text(report: DrillReport) -> str:
    return "".join(f"{_line(each)}\n" for each in _lines(report))


def _line(text: str) -> str:
    """Names and errors come from buckets and brokers: they steer no terminal, and what they say stays inside the line that quotes it."""
    return "\n    ".join("".join(each if each.isprintable() else repr(each)[1:-1] for each in line) for line in text.split("\n"))


def drill_summary(last: LastDrill, now_ms: int) -> str:
    """As in "last drill 3 d 2 h ago: passed, 12 partitions, 1.5 GiB compared"."""
    age = duration_text(max(0, now_ms - last.ended_ms) / 1000)
    found = f", {count_text(last.findings, 'finding')}" if last.findings else ""
    error = f": {' '.join(last.error.split())}" if last.error else ""
    compared = f"{count_text(last.partitions, 'partition')}, {count_text(last.records, 'record')}, {size_text(last.size_bytes)} compared"
    return f"last drill {age} ago: {last.outcome.value}, {compared}{found}{error} ({last.report})"


def _lines(report: DrillReport) -> Iterator[str]:
    request = report.request
    yield f"Recovery drill {report.id}"
    yield ""
    yield _VERDICTS[report.outcome] + (f": {count_text(report.finding_count, 'finding')}" if report.finding_count else "")
    if report.error:
        yield f"error              {report.error}"
    yield ""
    yield f"bucket             {report.store}"
    yield f"cluster            {report.cluster_id or 'not known'}"
    yield f"headwater          {report.headwater}, on {report.host}"
    yield f"begun              {time_text(report.started_ms)}, by {request.by}"
    yield f"ended              {time_text(report.ended_ms)}, after {duration_text((report.ended_ms - report.started_ms) / 1000)}"
    what = (
        "the cluster, its metadata included" if request.cluster else "all topics" if request.topics is None else ", ".join(request.topics)
    )
    yield f"selected           {what}: {_count(report.topics, report.partitions)}, {_amount(report.selected)}"
    yield (
        f"sample             {request.share:.6g} of the bytes was requested, {report.share:.6g} drawn from (at most "
        f"{size_text(request.scratch_bytes)}), seed {request.seed}"
    )
    yield f"compared           {count_text(report.compared_partitions, 'partition')}, {_amount(report.compared)}"
    if report.scratch:
        yield f"kept               {report.scratch}"
    yield ""
    yield "Read back by"
    for path in report.paths:
        yield f"  {_path(path)}"
    if report.metadata:
        yield "  metadata: " + ", ".join(f"{count} {name}" for name, count in report.metadata.items()) + " compared"
    if report.answers:
        yield "  broker: " + ", ".join(f"{count} {name}" for name, count in report.answers.items()) + " checked"
    yield ""
    yield from _times(report)
    yield from _section("Findings", [str(each) for each in report.findings], report.finding_count)
    yield from _section("Compared", [_window(each, {path.why for path in report.paths}) for each in report.windows])
    skipped = [f"{each.topic}:{each.numbers}: {each.why}: {_amount(each.amount)}" for each in report.skipped]
    yield from _section("Not compared", skipped)
    yield from _section("Requested, and not compared", report.unmet)
    yield from _section("Not checked", report.unchecked)
    yield from _section("Left out of the plan", report.left_out)
    yield from _section("Transactions that come back in part", report.torn)
    yield from _section("Notes of the plan", report.notes)


def _times(report: DrillReport) -> Iterator[str]:
    rto, rpo = report.rto, report.rpo
    yield "Recovery time (RTO)"
    yield f"  plan             {duration_text(rto.planned_s)}"
    yield f"  restore          {duration_text(rto.restored_s)}" + (f", {size_text(rto.bytes_per_s)}/s" if rto.bytes_per_s else "")
    if rto.ready_s is not None:
        yield f"  until readable   {duration_text(rto.ready_s)}, of the sample"
    if rto.everything_s is not None:
        yield f"  everything       about {duration_text(rto.everything_s)} at this pace (an estimate)"
    yield ""
    yield "Recovery point (RPO)"
    if rpo.source == "live cluster":
        yield (
            f"  by the live cluster: not archived to the end: {rpo.behind} of {count_text(rpo.partitions, 'partition')}, "
            f"{count_text(rpo.records, 'offset')}"
        )
        if rpo.worst_s is not None:
            of = f", of the {len(rpo.worst)} furthest behind" if rpo.behind > len(rpo.worst) else ""
            yield f"  longest wait     {duration_text(rpo.worst_s)}{of}"
        for lag in rpo.worst[:5]:
            waits = "" if lag.behind_s is None else f", for {duration_text(lag.behind_s)}"
            yield f"  {lag.topic}:{lag.partition} is archived to {lag.archived_end}, the log ends at {lag.live_end}{waits}"
    else:
        yield f"  not measured against live logs: {rpo.why}"
    for each in rpo.unmeasured[:SHOWN_MAX]:
        yield f"  not measured     {each.topic}:{each.numbers}: {each.why}"
    if len(rpo.unmeasured) > SHOWN_MAX:
        yield f"  and {len(rpo.unmeasured) - SHOWN_MAX} more, which the JSON has"
    if rpo.newest_record_ms is not None:
        yield f"  newest record    {time_text(rpo.newest_record_ms)}"
    yield ""


def _section(title: str, lines: Sequence[str], count: int | None = None) -> Iterator[str]:
    if not lines:
        return
    yield title
    for line in lines[:SHOWN_MAX]:
        yield f"  {line}"
    if (more := (count or len(lines)) - min(SHOWN_MAX, len(lines))) > 0:
        yield f"  and {more} more, which the JSON has"
    yield ""


def _count(topics: int, partitions: int) -> str:
    return f"{count_text(topics, 'topic')}, {count_text(partitions, 'partition')}"


def _amount(amount: Amount) -> str:
    return f"{count_text(amount.runs, 'run')}, {count_text(amount.records, 'record')}, {size_text(amount.size_bytes)}"


def _path(path: PathSum) -> str:
    why = f"; {path.why}" if path.why else ""
    if not path.amount.batches:
        return f"{path.name}: nothing{why}"
    batches = "1 batch" if path.amount.batches == 1 else f"{path.amount.batches} batches"
    return f"{path.name}: {_amount(path.amount)}, {batches}, in {duration_text(path.elapsed_s)}{why}"


def _window(window: ComparedWindow, said: Collection[str]) -> str:
    by = ", ".join(f"{name} {amount.records}" for name, amount in window.by.items())
    live = f"; {window.live}" if window.live and window.live not in said else ""
    return (
        f"{window.topic}:{window.partition} (id {window.topic_id}, head version {window.head_version}): offsets {window.base_offset} to "
        f"{window.last_offset}, {_amount(window.archived)}; equal records: {by}{live}"
    )
