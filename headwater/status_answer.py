"""What `headwater status` shows: what the agent on the data directory knows.

Without an agent, or without its answer, the log directories and the bucket are looked at, and why is part of what is shown.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields
from typing import Any, NamedTuple

from archival.partition_status import PartitionStatus
from headwater.agent_api import AgentApi
from headwater.config import Config
from headwater.options import parse_selection
from headwater.overview import missing_topics
from headwater.units import duration_text, size_text
from headwater_core.clock import time_text
from headwater_core.errors import HeadwaterError, NotFound, TransientError, Unauthorised, UsageError

WAIT_S = 3.0  # for the agent's looks at what was done just before
AGENT_S = 5.0  # for each of its pages: of a hundred thousand partitions there are fifty
STORE_FAILING_S = 5.0  # how long its calls of the store may be without an answer
PAGE_ROWS = 2000  # of which the agent's loop makes each in some 40 ms
_AWAY = {
    "store": ("object store", "; archive columns may be stale"),
    "broker": ("broker", "; high watermarks come from its checkpoint, and nothing is released"),
}
KEYS = (*(each.name for each in fields(PartitionStatus)), "age_s")


class StatusAnswer(NamedTuple):
    """
    rows     one per partition, by topic and number; each has KEYS at least
    note     where they are from, if not from the agent, and why; "" otherwise
    cluster  how old the newest snapshot of the cluster's metadata is, as the agent knows it; "" where it knows nothing of one
    failure  what is to be raised once they are shown: they are needed most when something fails
    outages  a line for each of store and broker that is away, with since when, and one for a disk that fills while releases wait
    """

    rows: list[dict[str, Any]]
    note: str = ""
    cluster: str = ""
    failure: HeadwaterError | None = None
    outages: tuple[str, ...] = ()


def find_status(config: Config, selection: str | None) -> StatusAnswer:
    """Raises what a survey raises where nothing is known."""
    try:
        return _of_agent(AgentApi.of(config), selection)
    except UsageError:
        raise
    except HeadwaterError as error:  # no agent, another user's, one that hangs, or of another version
        return _of_survey(config, selection, str(error))


def absence_note(config: Config, selection: str) -> str:
    """Return a note that no such topic or partition exists, so that a misspelt name is seen; "" where it exists, or that is not known."""
    try:
        find_status(config, selection)
    except NotFound:
        return f"note: {selection} is neither in the log directories nor in the archive; this applies once it is created"
    except HeadwaterError:
        return ""
    return ""


def _of_agent(agent: AgentApi, selection: str | None) -> StatusAnswer:
    """All pages. Raises what AgentApi does, and HeadwaterError where the agent knows nothing."""
    topic, number = parse_selection(selection) if selection else (None, None)
    wanted: dict[str, str | int | float | bool] = {"partitions": True, "limit": PAGE_ROWS}
    wanted |= {"topic": topic} if topic is not None else {}
    wanted |= {"partition": number} if number is not None else {}
    page = first = _page(agent, wanted | {"wait_s": WAIT_S})
    if not first.get("has_log_directories", True):
        raise HeadwaterError("the agent has no log directories, so it keeps no status of partitions")
    if not first["listed"]:
        raise TransientError("the agent has not listed its log directories")
    rows = list(page["partitions"])
    while "next_after" in page:
        page = _page(agent, wanted | {"after": page["next_after"]})
        rows += page["partitions"]
    if not rows:
        raise HeadwaterError(f"the agent knows nothing of {selection or 'any partition'}")
    return StatusAnswer(rows, cluster=_cluster(first), failure=_failure(first, topic), outages=(*_outages(first), *_full_disk(first, rows)))


def _outages(page: dict[str, Any]) -> Iterator[str]:
    for outage in page.get("outages", ()):
        what, consequence = _AWAY.get(outage["what"], (outage["what"], ""))
        lasted_s = max(0, page["at_ms"] - outage["since_ms"]) / 1000
        yield f"{what} away since {time_text(outage['since_ms'])} ({duration_text(lasted_s)}): {outage['reason']}{consequence}"


def _full_disk(page: dict[str, Any], rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    remaining_s, waiting = page.get("disk_full_in_s"), Counter[str]()
    for row in rows:
        if row["release_group"]:
            waiting[row["release_group"]] += row["release_blocked_bytes"]
    if remaining_s is not None and waiting:
        group, size_bytes = waiting.most_common(1)[0]
        yield (
            f"a disk of the log directories is full in {duration_text(remaining_s)} at the pace of the last hour: "
            f"{size_text(waiting.total())} wait for groups to read them, {size_text(size_bytes)} of these for {group}"
        )


def _cluster(page: dict[str, Any]) -> str:
    """In words, for people."""
    facts = page.get("cluster")
    if not isinstance(facts, dict):
        return ""
    said = "there is no snapshot of the cluster's metadata"
    if facts["number"] is not None:
        age_s = max(0, page["at_ms"] - facts["taken_ms"]) / 1000
        said = f"snapshot {facts['number']} of the cluster's metadata is {duration_text(age_s)} old"
    if not facts["failure"]:
        return said + (f", and the newest state has waited {duration_text(facts['lag_s'])}" if facts["lag_s"] else ", and nothing is newer")
    return f"{said}; the newest state has not been archived for {duration_text(facts['lag_s'])}: {facts['failure']}"


def _page(agent: AgentApi, query: dict[str, str | int | float | bool]) -> dict[str, Any]:
    page = agent.get("/v1/status", query, timeout_s=AGENT_S)
    needed = ("listed", "store_failing_s", "damaged_topics", "partitions")
    if not isinstance(page, dict) or set(needed) - set(page) or any(set(KEYS) - set(row) for row in page["partitions"][:1]):
        raise HeadwaterError("the agent is of another version, which does not say all of this: restart it")
    return page


def _failure(page: dict[str, Any], topic: str | None) -> HeadwaterError | None:
    failing_s = float(page["store_failing_s"])
    if failing_s >= STORE_FAILING_S:
        return TransientError(f"object store unreachable for {duration_text(failing_s)}; archive columns may be stale")
    damaged = {name: why for name, why in page["damaged_topics"].items() if topic in (None, name)}
    return missing_topics(damaged) if damaged else None


def _of_survey(config: Config, selection: str | None, why: str) -> StatusAnswer:
    rows: list[dict[str, Any]] = []
    failure: HeadwaterError | None = None
    try:
        for each in _surveyed(config, selection):
            rows.append(each)
    except HeadwaterError as error:
        if not rows:
            raise
        failure = error
    where = "the log directories and the bucket" if config.log.dirs else "the bucket"
    away = (f"object store away: {failure}; archive columns may be stale",) if isinstance(failure, TransientError | Unauthorised) else ()
    return StatusAnswer(rows, f"{why}: this is from {where}", failure=failure, outages=away)


def _surveyed(config: Config, selection: str | None) -> Iterator[dict[str, Any]]:
    from headwater.survey import survey_partitions

    for each in survey_partitions(config, selection):
        yield asdict(each) | {"age_s": 0.0}
