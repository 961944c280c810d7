"""The steps of an archiver agent. Every step that another party can come between is a step of its own."""

from tests.model import page_tree
from tests.model.collector import collect, read_pages
from tests.model.knowledge import knows_pages, needs_upgrade, view_of
from tests.model.lineage import behind, dead_from, place, plan, release_bound
from tests.model.page_tree import PageNeeded, listed, show
from tests.model.state import Agent, Entry, Head, Item, Job, Label, Object, Page, State, Steps, on
from tests.model.streams import assigned, is_next, is_stream, settled, stream


def agent(s: State, i: int) -> Steps:
    a, job, h = s.ags[i], s.ags[i].job, s.head
    if not a.fence and h.owner:
        return  # another cluster's archive
    here = a.inc == s.inc or on("incarnations_mixed")  # work on an old incarnation reaches only its own keys
    if s.left.crash and (a.fence or job.kind):
        yield ("agent", i, "crash"), s.with_agent(i, **Agent(inc=s.inc, old=a.old)._asdict()).spend(crash=1)
    if s.left.upgrade and i == 0:
        yield (
            ("agent", i, "UPGRADED" if a.old else "DOWNGRADED"),
            s.with_agent(i, **Agent(inc=s.inc, old=not a.old)._asdict()).spend(upgrade=1),
        )
    if a.note and here:
        ctl = max(s.ctl, a.note)
        if ctl != s.ctl and on("release_from_control"):
            yield ("agent", i, "announce", a.note), s.with_agent(i, note=None)._replace(ctl=ctl)
    if not here:
        if job.kind == "delete":
            yield from delete_records(s, i)
        else:
            yield ("agent", i, "notices the new incarnation"), s.with_agent(i, **Agent(inc=s.inc)._asdict())
    elif not a.fence:
        if not needs_upgrade(s, i):
            yield from claim(s, i)
        if needs_upgrade(s, i) and not on("old_agent_restarts"):
            return
        if h.writer == i and not job.kind:
            yield ("agent", i, "restart with own fence", h.fence), s.with_agent(i, fence=h.fence, head=h)
    elif not job.kind:
        yield from idle(s, i)
    elif job.kind == "release":
        assert job.head
        found = view_of(s, i, job.head)
        x = release_bound(s.reps[i], found) if found else 0  # unknown archive state: nothing is released
        next_job = Job("delete", bound=x) if x > s.reps[i].start else Job()
        yield ("agent", i, "release: lineage allows below", x), s.with_agent(i, job=next_job)
    elif job.kind == "delete":
        yield from delete_records(s, i)
    elif job.kind == "gc":
        yield from read_pages(s, i) if job.named is None and knows_pages(s, i) else collect(s, i)
    elif job.kind == "run" and not job.stage:
        yield from upload(s, i)
    elif job.kind == "run" and job.stage == "sent":
        there = any(o.uid == job.uid for o in s.objs)
        label = ("agent", i, "confirm", job.uid, "ok" if there else "MISSING")
        held = a.stream._replace(confirmed=there) if a.stream and is_stream(job) else a.stream
        yield label, s.with_agent(i, job=job._replace(stage="confirmed") if there or on("commit_unconfirmed") else Job(), stream=held)
    elif job.page:
        yield confirm_page(s, i, job.page)
    elif job.sent:
        yield ("agent", i, "read back"), read_back(s, i)
    else:
        yield from commit(s, i)


def claim(s: State, i: int) -> Steps:
    r, h, job = s.reps[i], s.head, s.ags[i].job
    if not r.lead or not s.left.claim or (h.writer == i and not job.kind):
        return
    if on("fence_from_epoch") and r.lead < h.fence:
        return
    f = max(r.lead, h.fence) if on("fence_from_epoch") else h.fence + 1
    found = view_of(s, i, h)
    assert found  # its pages are there: I2
    follows = on("stamp") and not behind(r, found) and dead_from(r, found) is None
    new = h._replace(version=h.version + 1, fence=f, writer=i, epoch=max(h.epoch, r.lead) if follows else h.epoch)
    new = assigned(s, h, new, fails=True)
    paged = s.with_agent(i, fence=f, head=h, job=Job("cas", live=found.live, dead=found.dead, epoch=new.epoch, start=found.start))
    if isinstance(proposal(paged, i), PageNeeded):  # a head of the old format is carried over: pages under the fence that it asks for
        yield ("agent", i, "claim: pages first", f"fence {f}"), paged.spend(claim=1)
        return
    keep = job._replace(epoch=new.epoch) if job.kind and job.base == h.end else Job()
    t = s.with_agent(i, fence=f, head=new, job=keep, mine=new.pending)._replace(head=new)
    yield ("agent", i, "claim", f"fence {f}"), settled(t, i).spend(claim=1)


def idle(s: State, i: int) -> Steps:
    """An agent that holds a fence and has nothing in hand."""
    a, r, left, h = s.ags[i], s.reps[i], s.left, s.head
    found = view_of(s, i, a.head) if r.lead else None
    if r.lead and not found:
        yield ("agent", i, "page not found: reload"), reload(s, i)
    for job in plan(r, found, left.merge > 0, left.trim > 0) if found else ():
        if is_next(s, i, job):
            yield from stream(s, i, job)
            continue
        merges = job.kind == "run" and job.base < a.head.end and len(job.epochs) > 1
        trims = job.kind == "cas" and job.start > a.head.start
        t = s.spend(merge=int(merges), trim=int(trims)).with_agent(i, job=job)
        if not (left.gc or left.fault):  # nobody can look at what is not listed: one step
            if job.kind == "run":
                label, t = next(upload(t, i))
                t = with_pages(t.with_agent(i, job=t.ags[i].job._replace(stage="confirmed")), i)
                yield ("agent", i, "plan and upload", *label[3:]), t
                continue
            t = with_pages(t, i)
        yield ("agent", i, "plan", *(job[:3] if job.kind == "run" else ("cas", job.live, job.dead))), t
    if needs_upgrade(s, i) or h.owner:
        return
    if left.release:
        if on("release_from_control"):
            t = s.with_agent(i, job=Job("delete", bound=s.ctl[1]))
            yield ("agent", i, "release: trust control log", s.ctl), t.spend(release=1)
        elif (h.fence == a.fence and h.writer == i) or on("release_foreign_fence"):
            t = s.with_agent(i, job=Job("release", head=h))
            yield ("agent", i, "release: read head", f"end {h.end}"), t.spend(release=1)
    if left.gc:
        f = h.fence + (0 if on("gc_no_raise") else 1)
        new = h if on("gc_no_raise") else h._replace(version=h.version + 1, fence=f, writer=i)
        lost = h.pending is not None and h.pending != a.mine  # no commit of this process will list it
        fails = (h.fence, h.writer) != (a.fence, i) or lost  # its own collection keeps what it is writing
        new = assigned(s, h, new, fails=fails)
        t = s.with_agent(i, fence=f, head=new, job=Job("gc", head=new), spare=() if on("ownpage") else a.spare)._replace(head=new)
        t = t if new.pending == h.pending else t.with_agent(i, mine=new.pending)
        yield ("agent", i, "gc: raise fence", f), settled(t, i).spend(gc=1)
        if h.fence == a.fence and h.writer == i:  # enough where nothing unreferenced carries the head's own fence
            yield ("agent", i, "gc: head as it is", h.fence), s.with_agent(i, head=h, job=Job("gc", head=h)).spend(gc=1)


def delete_records(s: State, i: int) -> Steps:
    """DeleteRecords names topic and offset only and is routed to whoever leads by then."""
    bound, to = s.ags[i].job.bound, s.leader
    t = s.with_agent(i, job=Job())
    if on("pin"):
        if not s.reps[i].lead:
            yield ("agent", i, "release: DeleteRecords refused, not leader"), t
            return
        to = i
    r = s.reps[to]
    label = ("agent", i, "release: DeleteRecords below", bound)
    yield label, t.with_replica(to, start=max(r.start, bound)) if bound <= r.hw else t


def upload(s: State, i: int) -> Steps:
    a, job = s.ags[i], s.ags[i].job
    uid = f"{job.base}-{len(job.epochs)}-{a.fence}" if on("key_without_uid") else s.uids if job.uid is None else job.uid
    t = s.with_agent(i, job=job._replace(uid=uid, stage="sent"))._replace(uids=s.uids + 1)
    if on("merge_deletes_first"):
        old = {x.uid for x in listed(a.head.live) if job.base <= x.base < job.base + len(job.epochs)}
        t = t._replace(objs=tuple(o for o in t.objs if o.uid not in old))
    there = any(o.uid == uid for o in t.objs)
    objs = t.objs if there else (*t.objs, Object(uid, a.fence, job.base, job.epochs, s.inc))
    yield ("agent", i, "upload", uid, job.base, job.epochs), t._replace(objs=objs)
    if s.left.fault:
        yield ("agent", i, "upload LOST", uid), t.spend(fault=1)


def write_page(s: State, i: int, items: tuple[Item, ...]) -> Steps:
    """Before the head that names it: create-only, under a new name each time."""
    a = s.ags[i]
    uid = f"{items[0].base}-{items[-1].end}-{a.fence}" if on("page_without_uid") or on("page_overwritten") else s.uids
    page = Page(uid, a.fence, items)
    t = s.with_agent(i, job=a.job._replace(page=page))._replace(uids=s.uids + 1)
    if on("head_before_pages"):
        yield ("agent", i, "name a page to be written", uid), t.with_agent(i, job=a.job, spare=(*a.spare, page))
        return
    yield ("agent", i, "write page", uid, show(items)), t.with_page(page)
    if s.left.fault:
        yield ("agent", i, "write page", uid, show(items), "LOST"), t.spend(fault=1)
        yield ("agent", i, "write page", uid, show(items), "DELAYED"), t._replace(net=(*s.net, page)).spend(fault=1)


def confirm_page(s: State, i: int, page: Page) -> tuple[Label, State]:
    a = s.ags[i]
    by_name = on("page_without_uid") or on("page_overwritten")
    there = page in s.pages or (by_name and any(each.uid == page.uid for each in s.pages))
    spare = (*a.spare, page) if there or on("page_unconfirmed") else a.spare
    label = ("agent", i, "confirm page", page.uid, "ok" if there else "MISSING")
    return label, s.with_agent(i, job=a.job._replace(page=None), spare=spare)


def with_pages(s: State, i: int) -> State:
    """With every page in the bucket that the commit in hand needs: where nobody can come between, this is part of a step."""
    while isinstance(needed := proposal(s, i), PageNeeded):
        s = next(write_page(s, i, needed.items))[1]
        page = s.ags[i].job.page
        if page:
            s = confirm_page(s, i, page)[1]
    return s


def proposal(s: State, i: int) -> Head | PageNeeded | None:
    """The head this agent would commit for the work in hand; None when a page of the one it knows is not found."""
    a = s.ags[i]
    h, job = a.head, a.job
    found = view_of(s, i, h)
    if not found:
        return None
    after = found._replace(epoch=job.epoch)
    if job.kind == "cas":
        after = after._replace(live=job.live, dead=job.dead)
    else:
        new = Entry(job.base, job.epochs, job.uid)
        after = after._replace(live=(*after.live, new) if on("refused_not_read_back") else place(after.live, new))
    h = h._replace(version=h.version + 1, fence=a.fence, writer=i, epoch=job.epoch)
    if job.kind == "cas":
        gone = [x for x in found.live if x.end <= job.start]
        trimmed = {(o, e) for x in gone for o, e in enumerate(x.epochs, x.base)} | set(h.trimmed)
        h = h._replace(start=job.start, trimmed=tuple(sorted(trimmed)))
    before = a.head
    if not knows_pages(s, i):
        return assigned(s, before, h._replace(live=after.live, dead=after.dead, format=1), fails=job.stage == "failed")
    try:
        spare = tuple(page for page in a.spare if page.fence == a.fence or not on("ownpage"))
        laid = page_tree.layout(h, s.pages, after, spare, s.left)
        return assigned(s, before, laid, fails=job.stage == "failed")
    except PageNeeded as needed:
        return needed


def commit(s: State, i: int) -> Steps:
    a = s.ags[i]
    older = any(o.uid == a.job.uid and o.fence != a.fence for o in s.objs)
    if is_stream(a.job):
        if on("pending") and a.head.pending != a.job.uid:
            yield ("agent", i, "drop a stream that is not pending"), s.with_agent(i, job=Job(), stream=None)
            return
    elif older and on("ownkey") and a.job.kind == "run" and not on("key_without_uid"):
        yield ("agent", i, "drop upload of an older fence"), s.with_agent(i, job=Job())
        return
    new = proposal(s, i)
    if isinstance(new, PageNeeded):
        if s.left.gc or s.left.fault:
            yield from write_page(s, i, new.items)
            return
        s = with_pages(s, i)
        a, new = s.ags[i], proposal(s, i)
    if not isinstance(new, Head):
        yield ("agent", i, "page not found: reload"), reload(s, i)
        return
    wait = s.with_agent(i, job=a.job._replace(sent=new))
    label = ("agent", i, "commit", show(new.live))
    if s.head == a.head or on("blind_put"):
        t = done(s._replace(head=new), i, new)
        yield label, t
        if s.left.fault:
            yield (*label, "reply LOST"), wait._replace(head=new).spend(fault=1)
            if on("refused_not_read_back") and a.job.kind == "run":  # believes the refusal, appends the same run again
                yield (*label, "own retry REFUSED"), t.with_agent(i, head=new, job=a.job).spend(fault=1)
    else:
        yield (*label, "refused"), wait
    if s.left.fault:
        yield (*label, "DELAYED"), wait._replace(net=(*s.net, (a.head, new))).spend(fault=1)


def read_back(s: State, i: int) -> State:
    """Outcome unknown or refused: look at the head before doing anything else."""
    a = s.ags[i]
    new = a.job.sent
    assert new
    if s.head == new:
        return done(s, i, new)
    if on("loser_deletes") and new.live != a.head.live:
        s = s._replace(objs=tuple(o for o in s.objs if o.uid != a.job.uid))
    if on("loser_deletes_pages"):
        s = s._replace(pages=tuple(page for page in s.pages if page not in a.spare))
    return reload(s, i)


def reload(s: State, i: int) -> State:
    a, h = s.ags[i], s.head
    lost = h.fence > a.fence or (not on("fence_by_number") and (h.fence, h.writer) != (a.fence, i))
    if (lost and not on("ignore_fence")) or needs_upgrade(s, i) or h.owner:
        keep = a.job._replace(sent=None) if (on("reuse_upload") or on("stream_reused")) and a.job.kind == "run" else Job()
        return s.with_agent(i, fence=0, head=Head(), job=keep, spare=() if on("ownpage") else a.spare, mine=None, stream=None)
    return settled(s.with_agent(i, head=h, job=Job()), i)


def done(s: State, i: int, new: Head) -> State:
    spare, was = s.ags[i].spare, s.ags[i].head.pending
    if on("page_from_cache"):
        read = {page for _, page in page_tree.walk(new.live + new.dead, s.pages) if page}
        spare = tuple(sorted(read | set(spare)))
    mine = s.ags[i].mine if new.pending == was else new.pending
    return settled(s.with_agent(i, head=new, job=Job(), note=(new.version, new.end), spare=spare, mine=mine), i)
