"""What the model's world consists of: values only, so that a state can be a key.

A record is the pair (offset, leader epoch): an epoch has one leader, so the pair stands for the bytes. A log, an entry and an
object therefore hold a tuple of epochs, one per offset. A gap entry holds GAP.
"""

from typing import Any, NamedTuple

from tests.model.cases import RULES, Left

GAP = -1

Uid = Any  # of an object: a number, or what a planted mistake makes of it
Label = tuple[Any, ...]  # of a step: who, and what was done
IN_FORCE = set(RULES)  # rules in force, and mistakes planted


def on(name: str) -> bool:
    return name in IN_FORCE


class Entry(NamedTuple):
    base: int
    epochs: tuple[int, ...]
    uid: Uid

    @property
    def end(self) -> int:
        return self.base + len(self.epochs)


class Replica(NamedTuple):
    start: int = 0  # log start
    recs: tuple[int, ...] = ()  # epoch per offset from 0; below `start` only a ghost, for the checks
    hw: int = 0
    lead: int = 0  # epoch in which this broker believes it leads, else 0 (an old leader notices late)
    full: bool = False  # are all replicas in sync, as this broker last saw it while leading
    policy: int = 0  # ghost: the broker's own retention removed everything below, not us


class Head(NamedTuple):
    version: int = 0
    fence: int = 0
    writer: int = -1
    live: tuple[Entry, ...] = ()  # the archive starts at 0
    dead: tuple[Entry, ...] = ()  # superseded entries, still listed
    epoch: int = 0  # highest leader epoch whose history a commit has followed

    @property
    def end(self) -> int:
        return self.live[-1].end if self.live else 0


class Job(NamedTuple):
    """Work in hand. A run is uploaded (`uid`, `stage`) and then committed, a cas is committed as it is."""

    kind: str = ""  # run, cas, release, delete, gc; "" for none
    base: int = 0
    epochs: tuple[int, ...] = ()
    live: tuple[Entry, ...] = ()
    dead: tuple[Entry, ...] = ()
    epoch: int = 0
    uid: Uid = None
    stage: str = ""  # of the run's upload: "", sent, confirmed
    bound: int = 0  # delete: everything below
    head: Head | None = None  # release, gc: the head that was read
    sent: Head | None = None  # a commit of which the outcome is not known


class Agent(NamedTuple):
    fence: int = 0
    head: Head = Head()  # cached, the `expected` of the next compare-and-swap
    job: Job = Job()
    note: tuple[int, int] | None = None  # announcement not yet delivered to the control log
    inc: int = 1  # incarnation the agent works on


class Object(NamedTuple):
    uid: Uid
    fence: int
    base: int
    epochs: tuple[int, ...]
    inc: int


class State(NamedTuple):
    left: Left
    leader: int = 0
    epoch: int = 1
    reps: tuple[Replica, ...] = (Replica(recs=(1,), hw=1, lead=1, full=True), Replica(recs=(1,), hw=1))  # one record to begin with
    head: Head = Head()
    objs: tuple[Object, ...] = ()
    ags: tuple[Agent, ...] = (Agent(), Agent())
    net: tuple[tuple[Head, Head], ...] = ()  # delayed compare-and-swap requests (expected, new)
    ctl: tuple[int, int] = (0, 0)  # control log: (manifest version, next offset)
    uids: int = 0
    inc: int = 1

    def with_agent(self, i: int, **changes: Any) -> "State":
        ags = list(self.ags)
        ags[i] = ags[i]._replace(**changes)
        return self._replace(ags=tuple(ags))

    def with_replica(self, i: int, **changes: Any) -> "State":
        reps = list(self.reps)
        reps[i] = reps[i]._replace(**changes)
        return self._replace(reps=tuple(reps))

    def spend(self, **used: int) -> "State":
        return self._replace(left=self.left._replace(**{name: getattr(self.left, name) - count for name, count in used.items()}))
