"""The pure parts of the protocol: what an agent may do next, from its broker's log and a view."""

from tests.model.state import GAP, Entry, Job, Replica, View, on


def history(r: Replica) -> list[tuple[int, int]]:
    """The broker's epoch history: (epoch, first offset), as its leader-epoch checkpoint would say."""
    out: list[tuple[int, int]] = []
    for o in range(r.start, len(r.recs)):
        if not out or out[-1][0] != r.recs[o]:
            out.append((r.recs[o], o))
    if not out and r.recs:
        out.append((r.recs[-1], r.start))
    if r.lead and (not out or out[-1][0] < r.lead):
        out.append((r.lead, len(r.recs)))
    return out


def lies_on(hist: list[tuple[int, int]], end: int, o: int, epoch: int) -> bool:
    """Does a record (o, epoch) lie on this history? Below its first offset only `not newer` can be said."""
    if epoch == GAP:
        return o < end
    if not hist or o >= end:
        return False
    if o < hist[0][1]:
        return epoch <= hist[0][0]
    return [e for e, first in hist if first <= o][-1] == epoch


def behind(r: Replica, view: View) -> bool:
    local = max((e for e, _ in history(r)), default=0)
    newest = max((e for x in view.live for e in x.epochs), default=0)
    return not on("no_behind") and ((on("epoch") and local < view.epoch) or (on("diverge") and local < newest))


def dead_from(r: Replica, view: View) -> int | None:
    """The offset from which what is live in the archive is a dead branch; None when nothing is."""
    hist = history(r)
    newest = [x for x in view.live if x.base >= view.inline]
    if on("cut_in_head_only") or (on("lineage_of_newest") and newest and _on_history(r, newest[0])):
        view = view._replace(live=tuple(newest))
    for x in view.live:
        for o, e in enumerate(x.epochs, x.base):
            if on("diverge"):
                if not lies_on(hist, len(r.recs), o, e):
                    return o
            elif e != GAP and any(n > e and first <= o for n, first in hist):
                return o
    return None


def _on_history(r: Replica, x: Entry) -> bool:
    return x.uid != GAP and all(lies_on(history(r), len(r.recs), o, e) for o, e in enumerate(x.epochs, x.base))


def cut(view: View, at: int) -> tuple[tuple[Entry, ...], tuple[Entry, ...]]:
    """Live and superseded entries, once what lies beyond `at` has left the live list; it stays listed as superseded."""
    live, dead = [], list(view.dead)
    for base, epochs, uid in view.live:
        n = max(0, min(len(epochs), at - base))
        if n:
            live.append(Entry(base, epochs[:n], uid))
        if n < len(epochs) and uid != GAP:
            dead.append(Entry(base + n, epochs[n:], uid))
    return tuple(live), () if on("forget_superseded") else tuple(sorted(dead))


def plan(r: Replica, view: View, merge: bool = False, trim: bool = False) -> list[Job]:
    """What the agent beside replica `r` may do next."""
    hist = history(r)
    now = hist[-1][0] if hist else 0
    same = Job("cas", live=view.live, dead=view.dead, epoch=now, start=view.start)
    if behind(r, view):
        return []
    at = dead_from(r, view)
    if at is not None:
        if not on("no_cut"):
            live, dead = cut(view, at)
            start = min(view.start, r.start) if not live and on("restart") else view.start
            return [same._replace(live=live, dead=dead, start=start)]
    elif not on("diverge") and not on("no_behind"):
        newest = max((e for x in view.live for e in x.epochs), default=0)
        if newest and newest not in [e for e, _ in hist]:
            return []
    if on("stamp") and r.lead > view.epoch:
        return [same._replace(epoch=r.lead)]
    if on("refill"):
        for x in view.live:
            if x.uid == GAP and r.start <= x.base < r.hw and not (on("refill_in_head_only") and x.base < view.inline):
                return [Job("run", x.base, (r.recs[x.base],), epoch=now)]
    if on("revive"):
        revived = revival(r, view)
        if revived:
            return [same._replace(live=revived[0], dead=revived[1])]
    if view.end < r.start:
        return [same._replace(live=(*view.live, Entry(view.end, (GAP,), GAP)))]
    hw = len(r.recs) if on("archive_above_hw") else r.hw
    out = []
    if view.end < hw:
        out = [Job("run", view.end, r.recs[view.end : n], epoch=now) for n in sorted({view.end + 1, hw})]
    if merge:
        for a, b in zip(view.live, view.live[1:], strict=False):
            if GAP not in (a.uid, b.uid):
                out.append(Job("run", a.base, a.epochs + b.epochs, epoch=now))
    if trim and len(view.live) > (1 if on("keepone") else 0):
        out.append(same._replace(live=view.live[1:], start=view.live[0].end))
    return out


def revival(r: Replica, view: View) -> tuple[tuple[Entry, ...], tuple[Entry, ...]] | None:
    """Live and superseded entries once a superseded one that lies on the history again, where the live ones end, is live again."""
    hist, end = history(r), view.end
    for x in sorted(view.dead, key=lambda x: -x.epochs[0]):
        n = 0
        while x.base == end and n < len(x.epochs) and end + n < r.hw and lies_on(hist, len(r.recs), end + n, x.epochs[n]):
            n += 1
        if n:
            rest = {Entry(end + n, x.epochs[n:], x.uid)} if n < len(x.epochs) else set()
            live = (*view.live, Entry(end, x.epochs[:n], x.uid))
            return live, tuple(sorted(set(view.dead) - {x} | rest))
    return None


def place(live: tuple[Entry, ...], new: Entry) -> tuple[Entry, ...]:
    """Insert a run, replacing exactly the entries it spans."""
    return (*(x for x in live if x.base < new.base), new, *(x for x in live if x.base >= new.end))


def release_bound(r: Replica, view: View) -> int:
    """First offset that must stay, from a head read anew and the history of the agent's own broker."""
    if not r.lead or (on("isr") and not r.full) or (on("stamp") and view.epoch != r.lead):
        return 0
    hist, bound = history(r), 0
    for x in view.live:
        for o, e in enumerate(x.epochs, x.base):
            paged = o < view.inline
            if e == GAP and on("gapstop") and o >= r.start and not (on("release_by_reference") and paged):
                return bound
            unread = on("release_no_lineage") or (paged and (on("release_by_reference") or on("release_by_gap_mark")))
            if not unread and not lies_on(hist, len(r.recs), o, e):
                return bound
            bound = o + 1
    return bound + (1 if on("release_off_by_one") else 0)
