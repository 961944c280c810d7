"""What must hold in each state and in each step, and what a run must have reached to prove anything."""

from collections.abc import Callable

from tests.model import page_tree
from tests.model.lineage import place, plan
from tests.model.page_tree import listed
from tests.model.state import GAP, Entry, Object, Page, Ref, Replica, State, View, on

_SETTLED: dict[tuple[Replica, View, tuple[Object, ...], int], str | None] = {}


def content(objs: tuple[Object, ...] | list[Object], inc: int, entry: Entry, o: int) -> int | None:
    """What the archive would serve at `o`; None when the object is missing or another incarnation's."""
    for obj in objs:
        if obj.uid == entry.uid and obj.inc == inc and obj.base <= o < obj.base + len(obj.epochs):
            return obj.epochs[o - obj.base]
    return None


def settle(r: Replica, view: View, stored: tuple[Object, ...], inc: int) -> str | None:
    """Run the true leader's agent to rest without faults; None, or what is wrong with what it then serves."""
    objs = list(stored)
    for n in range(16):
        jobs = plan(r, view)
        if not jobs:
            break
        job = jobs[-1]
        live, dead = job.live, job.dead
        if job.kind == "run":
            uid = ("settled", n)
            objs.append(Object(uid, 0, job.base, job.epochs, inc))
            live, dead = place(view.live, Entry(job.base, job.epochs, uid)), view.dead
        view = view._replace(live=live, dead=dead, epoch=job.epoch, start=job.start if job.kind == "cas" else view.start)
    served = {o: x for x in view.live for o in range(x.base, x.end)}
    for o in range(r.hw):
        if o < view.start and (o < r.policy or (o, r.recs[o]) in view.trimmed):
            continue
        if o not in served:
            return f"I15 archiver stuck: offset {o} below the high watermark is never archived"
        if served[o].uid == GAP:
            if o >= r.policy:
                return f"I4 a gap hides offset {o}, which no broker retention removed"
        elif o >= r.policy and content(objs, inc, served[o], o) != r.recs[o]:  # what retention took, nobody can compare any more
            return f"I5 offset {o} would be served as epoch {content(objs, inc, served[o], o)}, the log says {r.recs[o]}"
    return None


def broken(s: State) -> str | None:
    """The first invariant that does not hold in this state, or None."""
    head, r = page_tree.view(s.head, s.pages), s.reps[s.leader]
    if head is None:
        return f"I2 the head names a page that is missing or holds something else: {page_tree.show(s.head.live + s.head.dead)}"
    if s.reader.wrong:
        return s.reader.wrong
    if on("fence_from_epoch") and r.lead < s.head.fence:
        return "I15 the leader can never claim"
    expected = head.start
    for x in head.live:
        if x.base != expected:
            return f"I4 live entries do not abut at {expected}: {head.live}"
        expected = x.end
    for x in head.live + head.dead:
        for o, e in enumerate(x.epochs, x.base):
            if x.uid != GAP and content(s.objs, s.inc, x, o) != e:
                return f"I2 the head names object {x.uid}, which is missing or holds something else"
    epochs = [e for x in head.live for e in x.epochs if e != GAP]
    if epochs != sorted(epochs):
        return f"I6 epochs of live entries go back: {head.live}"
    listed = head.live + head.dead
    for o in range(r.policy, r.start):
        if (o, r.recs[o]) not in head.trimmed and not any(
            x.uid != GAP and x.base <= o < x.end and x.epochs[o - x.base] == r.recs[o] for x in listed
        ):
            return f"I1 offset {o} (epoch {r.recs[o]}) was released and is in neither log nor archive"
    if s.started and (bad := _not_recovered(s)):
        return bad
    if s.taken:
        return None  # what goes on in the cluster that has lost its archive is archived no more
    key = (r, head, s.objs, s.inc)
    if key not in _SETTLED:
        _SETTLED[key] = settle(*key)
    return _SETTLED[key]


def forget_settled() -> None:
    """What settled under other rules says nothing."""
    _SETTLED.clear()


def broken_step(s: State, t: State) -> str | None:
    """What must hold between a state and its successor."""
    a, b = s.head, t.head
    if a == b or s.inc != t.inc:
        return None
    if b.version != a.version + 1:
        return f"I7 manifest versions are no chain: {a.version} then {b.version}"
    if b.fence < a.fence:
        return f"I8 a lower fence committed: {b.fence} after {a.fence}"
    if b.fence == a.fence and b.writer != a.writer:
        return f"I8 two writers commit under fence {b.fence}"
    if s.taken and b.writer in range(len(s.ags)):
        return f"I8 an agent of the cluster that has lost its archive commits version {b.version}"
    if b.epoch < a.epoch:
        return f"I6 lineage knowledge went back: epoch {b.epoch} after {a.epoch}"
    r = s.reps[s.leader]
    was, now = page_tree.view(a, s.pages), page_tree.view(b, t.pages)
    if not was or not now:
        return None  # broken() says why
    had = {(o, e) for x in was.live for o, e in enumerate(x.epochs, x.base) if x.uid != GAP}
    has = {(o, e) for x in now.live + now.dead for o, e in enumerate(x.epochs, x.base)}
    gone = {(o, e) for o, e in had - has if o < r.hw and r.recs[o] == e and (o, e) not in b.trimmed}
    return f"I8 published records left the head: {sorted(gone)}" if gone else None


def _not_recovered(s: State) -> str | None:
    """What the head lists that has changed hands, and the plan from which everything was recovered did not."""
    assert s.planned
    was, now = page_tree.view(s.planned, s.pages), page_tree.view(s.head, s.pages)
    if was is None or now is None:
        return None  # its page was replaced, with another entry tree of the same records
    had = {(o, e) for x in was.live for o, e in enumerate(x.epochs, x.base)}
    more = {(o, e) for x in now.live for o, e in enumerate(x.epochs, x.base)} - had
    return f"I17 the recovered log lacks what is archived: {sorted(more)}" if more else None


def _named(s: State) -> set[object]:
    items = s.head.live + s.head.dead
    below = [(ref, page) for ref, page in page_tree.walk(items, s.pages) if page]
    return {x.uid for x in listed(items)} | {x.uid for _, page in below for x in listed(page.items)} | {ref.page for ref, _ in below}


def _refs(s: State, level: int = 0) -> list[Ref]:
    return [x for x in s.head.live + s.head.dead if isinstance(x, Ref) and x.level >= level]


def _places(entries: tuple[Entry, ...]) -> set[tuple[int, object]]:
    return {(o, x.uid) for x in entries for o in range(x.base, x.end)}


WITNESSES: dict[str, Callable[[State], bool]] = {
    "record released and served by the archive": lambda s: any(r.start > r.policy for r in s.reps),
    "dead branch superseded": lambda s: bool(s.head.dead),
    "superseded and the newer epoch archived": lambda s: bool(s.head.dead) and len({e for x in listed(s.head.live) for e in x.epochs}) > 1,
    "superseded entry about to become live again": lambda s: any(
        a.job.kind == "cas" and (view := page_tree.view(a.head, s.pages)) and _places(a.job.live) & _places(view.dead) for a in s.ags
    ),
    "two agents hold a fence": lambda s: all(a.fence for a in s.ags),
    "old leader does not know the new epoch": lambda s: all(r.lead for r in s.reps),
    "release checked, election before DeleteRecords": lambda s: any(
        a.job.kind == "delete" and 0 < s.reps[i].lead < s.epoch for i, a in enumerate(s.ags)
    ),
    "delayed commit in the network": lambda s: bool(s.net),
    "outcome unknown, but committed": lambda s: any(a.job.sent == s.head for a in s.ags),
    "outcome unknown, and refused": lambda s: any(a.job.sent and a.job.sent != s.head for a in s.ags),
    "orphan object": lambda s: any(o.uid not in _named(s) for o in s.objs),
    "gc about to delete an orphan": lambda s: any(
        a.job.kind == "gc" and a.job.head and any(o.fence < a.job.head.fence and o.uid not in _named(s) for o in s.objs) for a in s.ags
    ),
    "gap entry": lambda s: any(x.uid == GAP for x in listed(s.head.live)),
    "merge uploaded, about to replace two entries": lambda s: any(
        a.job.stage == "confirmed" and len(a.job.epochs) > 1 and a.job.base < a.head.end for a in s.ags
    ),
    "archive has caught up": lambda s: 0 < s.reps[s.leader].hw == s.head.end,
    "entry in a page": lambda s: bool(_refs(s)),
    "pages two levels deep": lambda s: bool(_refs(s, level=2)),
    "superseded entry in a page": lambda s: any(isinstance(x, Ref) for x in s.head.dead),
    "gap in a page": lambda s: any(
        page and any(x.uid == GAP for x in listed(page.items)) for _, page in page_tree.walk(s.head.live, s.pages)
    ),
    "released what only a page lists": lambda s: any(s.reps[s.leader].start > max(r.base, s.reps[s.leader].policy) for r in _refs(s)),
    "page rewritten": lambda s: any(p.uid not in _named(s) and any(p.items[0] in q.items for q in s.pages if q != p) for p in s.pages),
    "orphan page": lambda s: any(p.uid not in _named(s) for p in s.pages),
    "gc about to delete an orphan page": lambda s: any(
        a.job.named is not None and a.job.head and any(p.fence < a.job.head.fence and p.uid not in a.job.named for p in s.pages)
        for a in s.ags
    ),
    "page confirmed for a commit that was refused": lambda s: any(a.fence and a.spare and not a.job.kind for a in s.ags),
    "delayed page in the network": lambda s: any(isinstance(x, Page) for x in s.net),
    "writer whose head's page was collected": lambda s: any(a.fence and page_tree.view(a.head, s.pages) is None for a in s.ags),
    "gc whose head's page was collected": lambda s: any(a.job.head and page_tree.view(a.job.head, s.pages) is None for a in s.ags),
    "reader that found a page or an object collected": lambda s: s.reader.lost is not None,
    "reader of an old head that is deleted from": lambda s: bool(s.reader.head) and s.reader.head != s.head and s.look > 1,
    "head of the old format with more than fits": lambda s: s.left.inline > 0 and s.head.format == 1 and len(s.head.live) > s.left.inline,
    "claim that carries a head of the old format over": lambda s: any(
        a.fence > s.head.fence and a.job.page and a.head.format == 1 for a in s.ags
    ),
    "claim that has written its page and lost": lambda s: (
        s.head.format == 1 and any(p.fence == s.head.fence and p.uid not in _named(s) for p in s.pages)
    ),
    "gap in a page about to be refilled": lambda s: any(
        a.job.kind == "run"
        and a.job.stage == "confirmed"
        and any(isinstance(x, Ref) and x.base <= a.job.base < x.end for x in a.head.live)
        and len(a.job.epochs) == 1
        for a in s.ags
    ),
    "archive trimmed inside a page": lambda s: any(isinstance(x, Ref) and x.base == s.head.start > 0 for x in s.head.live),
    "nothing left live": lambda s: bool(s.head.trimmed) and not s.head.live,
    "archive start moved back": lambda s: any(o >= s.head.start for o, _ in s.head.trimmed),
    "open stream": lambda s: any(a.stream and not a.stream.closed for a in s.ags),
    "stream in the bucket, its commit still to come": lambda s: any(
        a.stream and a.stream.confirmed and a.head.pending == a.stream.uid not in _named(s) and not a.job.kind for a in s.ags
    ),
    "object of a stream that has failed": lambda s: any(
        isinstance(o.uid, str) and o.uid != s.head.pending and o.uid not in _named(s) for o in s.objs
    ),
    "collection beside a stream in the bucket": lambda s: any(a.job.kind == "gc" and a.stream and a.stream.confirmed for a in s.ags),
    "switched off, and a stream to be finished": lambda s: s.left.begun > 0 and not s.left.stream and s.head.pending is not None,
    "taken over while an agent has an upload in hand": lambda s: (
        s.head.owner > 0 and any(a.fence and a.job.kind == "run" and a.job.stage == "confirmed" for a in s.ags)
    ),
    "taken over while a commit is delayed in the network": lambda s: s.head.owner > 0 and bool(s.net),
    "archived on since a take-over was planned": lambda s: s.planned is not None and not s.taken and s.planned.end < s.head.end,
    "old agent before a head with pages": lambda s: s.ags[0].old and s.head.format == 2 and s.ags[0].fence > 0,
}
