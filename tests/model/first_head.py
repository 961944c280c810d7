"""A partition's first head, made while the archive changes hands: small enough for a search of its own.

The agent of the old cluster reads whose the bucket is, makes the head, reads again, and lists what it has uploaded. Another agent of it
that finds that head reads whose the bucket is before it claims it. A recovery looks at the bucket, takes headwater.json, looks again and
gives what it finds, until a look finds nothing to give; then a broker starts. What the old agents listed by then is in the last look; what
they list later would be taken for the new log's.
"""

from collections.abc import Iterator
from typing import NamedTuple


class State(NamedTuple):
    """owner, head: of which cluster, 0 the old one; None: no head. entries: of its log. agent, other, taker: what each does next."""

    owner: int = 0
    head: int | None = None
    entries: int = 0
    agent: str = "check"
    other: str = "load"
    taker: str = "look"
    known: int = 0
    started: bool = False


MISTAKES = {
    "listed_once": "what the look before headwater.json is settled has found is all that is given",
    "unconfirmed": "an agent does not read the owner again after its first commit",
    "claimed_unread": "an agent claims a head to which nothing was added yet, and does not read the owner",
    "unlooked": "what is found last is not compared with the plan",
}


def steps(s: State, mistake: str = "") -> Iterator[State]:
    if s.agent == "check":
        yield s._replace(agent="create" if s.owner == 0 else "refused")
    elif s.agent == "create" and s.head is None:
        yield s._replace(head=0, agent="list" if mistake == "unconfirmed" else "confirm")
    elif s.agent == "confirm":
        yield s._replace(agent="list" if s.owner == 0 else "refused")
    elif s.agent == "list":
        yield s._replace(entries=1, agent="done") if s.head == 0 else s._replace(agent="refused")
    if s.other == "load" and s.head == 0:
        yield s._replace(other="list" if mistake == "claimed_unread" else "check")
    elif s.other == "check":
        yield s._replace(other="list" if s.owner == 0 else "refused")
    elif s.other == "list":
        yield s._replace(entries=1, other="done") if s.head == 0 else s._replace(other="refused")
    if s.taker == "look":
        yield s._replace(taker="own", known=int(s.head == 0)) if not s.entries else s._replace(taker="refused")
    elif s.taker == "own":
        yield s._replace(owner=1, taker="give")
    elif s.taker == "give":
        if mistake == "listed_once":
            yield s._replace(head=1 if s.known else s.head, taker="check")
        else:
            yield s._replace(head=1) if s.head == 0 else s._replace(taker="check")
    elif s.taker == "check":
        yield s._replace(taker="refused") if s.entries and mistake != "unlooked" else s._replace(taker="done", started=True)


def broken(s: State) -> str:
    if s.started and s.entries:
        return "a broker has started, and the archive has records that its log has not"
    return ""


def explore(mistake: str = "") -> tuple[set[State], str]:
    """Every state, and what is broken in one of them; ""."""
    seen, left = {State()}, [State()]
    while left:
        for after in steps(left.pop(), mistake):
            if bad := broken(after):
                return seen, bad
            if after not in seen:
                seen.add(after)
                left.append(after)
    return seen, ""
