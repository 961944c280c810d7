"""What the model's world consists of: values only, so that a state can be a key.

A record is the pair (offset, leader epoch): an epoch has one leader, so the pair stands for the bytes. A log, an entry and an
object therefore hold a tuple of epochs, one per offset. A gap entry holds GAP.
"""

from collections.abc import Iterator
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


class Ref(NamedTuple):
    """A reference to a page, which lists everything from `base` to `end`; level 1: entries, 2: references."""

    base: int
    end: int
    page: Uid
    level: int
    digest: int


Item = Entry | Ref


class Page(NamedTuple):
    uid: Uid
    fence: int
    items: tuple[Item, ...]


class View(NamedTuple):
    """What a head says once its pages have been read."""

    epoch: int
    live: tuple[Entry, ...]
    dead: tuple[Entry, ...]
    inline: int = 0  # from here on the head lists the live entries itself
    start: int = 0
    trimmed: tuple[tuple[int, int], ...] = ()  # ghost: (offset, epoch) of what the archive's own retention took

    @property
    def end(self) -> int:
        return self.live[-1].end if self.live else self.start


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
    live: tuple[Item, ...] = ()
    dead: tuple[Item, ...] = ()  # superseded entries, still listed
    epoch: int = 0  # highest leader epoch whose history a commit has followed
    format: int = 1  # 2: there may be pages
    start: int = 0  # of the archive, which may be empty
    trimmed: tuple[tuple[int, int], ...] = ()  # ghost, see View
    pending: Uid = None  # assigned to the stream that begins where the live entries end
    owner: int = 0  # 0: the cluster of both agents; 1: the one that was recovered

    @property
    def end(self) -> int:
        return self.live[-1].end if self.live else self.start


class Stream(NamedTuple):
    """What an agent has taken for the object that is pending. Closed: it takes no more; confirmed: it is in the bucket."""

    uid: Uid
    base: int
    epochs: tuple[int, ...] = ()
    closed: bool = False
    confirmed: bool = False


class Job(NamedTuple):
    """Work in hand. A run is uploaded (`uid`, `stage`) and then committed, a cas is committed as it is."""

    kind: str = ""  # run, cas, release, delete, gc; "" for none
    base: int = 0
    epochs: tuple[int, ...] = ()
    live: tuple[Entry, ...] = ()
    dead: tuple[Entry, ...] = ()
    epoch: int = 0
    start: int = 0  # of the archive then
    uid: Uid = None
    stage: str = ""  # of the run's upload: "", sent, confirmed
    bound: int = 0  # delete: everything below
    head: Head | None = None  # release, gc: the head that was read
    named: tuple[Uid, ...] | None = None  # gc: what that head names, its pages read
    page: Page | None = None  # sent before the commit, not confirmed
    sent: Head | None = None  # a commit of which the outcome is not known


class Agent(NamedTuple):
    fence: int = 0
    head: Head = Head()  # cached, the `expected` of the next compare-and-swap
    job: Job = Job()
    note: tuple[int, int] | None = None  # announcement not yet delivered to the control log
    inc: int = 1  # incarnation the agent works on
    old: bool = False  # knows no pages
    spare: tuple[Page, ...] = ()  # pages confirmed under this fence, whatever came of their commit
    mine: Uid = None  # the pending name that a commit of this very process has assigned
    stream: Stream | None = None


class Object(NamedTuple):
    uid: Uid
    fence: int
    base: int
    epochs: tuple[int, ...]
    inc: int


class Reader(NamedTuple):
    """Follows the references of the head it holds, then fetches the objects."""

    head: Head | None = None
    todo: tuple[Item, ...] = ()
    got: tuple[Entry, ...] = ()
    truth: tuple[Entry, ...] = ()  # ghost: what the head said when it was loaded
    look: int = 0  # ghost: how many looks gc had taken by then
    lost: Uid = None  # what was not found in the head before, which was then loaded anew
    wrong: str = ""


class State(NamedTuple):
    left: Left
    leader: int = 0
    epoch: int = 1
    reps: tuple[Replica, ...] = (Replica(recs=(1,), hw=1, lead=1, full=True), Replica(recs=(1,), hw=1))  # one record to begin with
    head: Head = Head()
    objs: tuple[Object, ...] = ()
    ags: tuple[Agent, ...] = (Agent(), Agent())
    net: tuple[Page | tuple[Head, Head], ...] = ()  # delayed writes of pages, and compare-and-swap requests (expected, new)
    ctl: tuple[int, int] = (0, 0)  # control log: (manifest version, next offset)
    uids: int = 0
    inc: int = 1
    pages: tuple[Page, ...] = ()
    reader: Reader = Reader()
    look: int = 0  # how many gc has taken
    seen: tuple[tuple[Uid, int], ...] = ()  # what was unreferenced at which look first
    planned: Head | None = None  # from which a recovery was planned that will take the archive over
    taken: bool = False  # it has
    started: bool = False  # ghost: a broker has, on what was recovered by that plan

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

    def with_page(self, page: Page) -> "State":
        """Create-only: what is there stays."""
        if on("page_overwritten"):
            return self._replace(pages=(*(each for each in self.pages if each.uid != page.uid), page))
        return self if any(each.uid == page.uid for each in self.pages) else self._replace(pages=(*self.pages, page))


Steps = Iterator[tuple[Label, State]]
