"""The steps of the model. Every step that another party can come between is a step of its own."""

from collections.abc import Iterator

from tests.model.lineage import behind, dead_from, place, plan, release_bound
from tests.model.state import Agent, Entry, Head, Job, Label, Object, Replica, State, on

Steps = Iterator[tuple[Label, State]]


def steps(s: State) -> Steps:
    yield from brokers(s)
    yield from agent(s, 0)
    yield from agent(s, 1)
    for k, (expected, new) in enumerate(s.net):
        t = s._replace(net=s.net[:k] + s.net[k + 1 :])
        applied = s.head == expected
        yield ("net", "delayed commit arrives", "applied" if applied else "refused"), t._replace(head=new) if applied else t


def brokers(s: State) -> Steps:
    """What the brokers do by themselves."""
    first, other, left = s.leader, 1 - s.leader, s.left
    lead, foll = s.reps[first], s.reps[other]
    if left.write:
        recs = (*lead.recs, s.epoch)
        t = s.with_replica(first, recs=recs, hw=lead.hw if lead.full else len(recs))
        yield ("broker", first, "write", len(lead.recs)), t.spend(write=1)
    n = 0
    while n < min(len(lead.recs), len(foll.recs)) and lead.recs[n] == foll.recs[n]:
        n += 1
    synced = foll._replace(
        recs=lead.recs,
        hw=len(lead.recs),
        lead=0,
        full=False,
        start=max(lead.start, min(foll.start, n)),
        policy=max(lead.policy, min(foll.policy, n)),
    )
    if synced != foll or not lead.full or lead.hw < len(lead.recs):
        t = s.with_replica(other, **synced._asdict()).with_replica(first, hw=len(lead.recs), full=True)
        yield ("broker", other, "follow"), t
    if lead.full and left.lag and left.unclean:
        yield ("broker", other, "out of sync"), s.with_replica(first, hw=len(lead.recs), full=False).spend(lag=1)
    if left.elect and (lead.full or left.unclean):
        e = s.epoch + 1
        t = s.with_replica(other, lead=e, hw=len(foll.recs), full=False)._replace(leader=other, epoch=e)
        label = ("broker", other, "elected" if lead.full else "elected UNCLEAN", f"epoch {e} at {len(foll.recs)}")
        yield label, t.spend(elect=1, unclean=0 if lead.full else 1)
    if left.retain:
        for i, r in enumerate(s.reps):
            if r.start < r.hw:
                t = s.with_replica(i, start=r.start + 1, policy=r.start + 1)
                yield ("broker", i, "retention", r.start), t.spend(retain=1)
    if left.recreate:
        t = s._replace(reps=(Replica(lead=1, full=True), Replica()), leader=0, epoch=1, inc=s.inc + 1)
        if not on("incarnations_mixed"):
            t = t._replace(head=Head(), objs=(), net=())
        yield ("broker", 0, "topic deleted and created again"), t.spend(recreate=1)


def agent(s: State, i: int) -> Steps:
    a, job, h = s.ags[i], s.ags[i].job, s.head
    here = a.inc == s.inc or on("incarnations_mixed")  # work on an old incarnation reaches only its own keys
    if s.left.crash and (a.fence or job.kind):
        yield ("agent", i, "crash"), s.with_agent(i, **Agent(inc=s.inc)._asdict()).spend(crash=1)
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
        yield from claim(s, i)
        if h.writer == i and not job.kind:
            yield ("agent", i, "restart with own fence", h.fence), s.with_agent(i, fence=h.fence, head=h)
    elif not job.kind:
        yield from idle(s, i)
    elif job.kind == "release":
        assert job.head
        x = release_bound(s.reps[i], job.head)
        next_job = Job("delete", bound=x) if x > s.reps[i].start else Job()
        yield ("agent", i, "release: lineage allows below", x), s.with_agent(i, job=next_job)
    elif job.kind == "delete":
        yield from delete_records(s, i)
    elif job.kind == "gc":
        yield from collect(s, i)
    elif job.kind == "run" and not job.stage:
        yield from upload(s, i)
    elif job.kind == "run" and job.stage == "sent":
        there = any(o.uid == job.uid for o in s.objs)
        label = ("agent", i, "confirm", job.uid, "ok" if there else "MISSING")
        yield label, s.with_agent(i, job=job._replace(stage="confirmed") if there or on("commit_unconfirmed") else Job())
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
    follows = on("stamp") and not behind(r, h) and dead_from(r, h) is None
    new = h._replace(version=h.version + 1, fence=f, writer=i, epoch=max(h.epoch, r.lead) if follows else h.epoch)
    keep = job._replace(epoch=new.epoch) if job.kind and job.base == h.end else Job()
    yield ("agent", i, "claim", f"fence {f}"), s.with_agent(i, fence=f, head=new, job=keep)._replace(head=new).spend(claim=1)


def idle(s: State, i: int) -> Steps:
    """An agent that holds a fence and has nothing in hand."""
    a, r, left, h = s.ags[i], s.reps[i], s.left, s.head
    for job in plan(r, a.head, left.merge > 0) if r.lead else ():
        merges = job.kind == "run" and job.base < a.head.end and len(job.epochs) > 1
        t = (s.spend(merge=1) if merges else s).with_agent(i, job=job)
        if job.kind == "run" and not (left.gc or left.fault):  # nobody can look at an unlisted object: one step
            for label, u in upload(t, i):
                yield ("agent", i, "plan and upload", *label[3:]), u.with_agent(i, job=u.ags[i].job._replace(stage="confirmed"))
            continue
        yield ("agent", i, "plan", *(job[:3] if job.kind == "run" else ("cas", job.live, job.dead))), t
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
        t = s.with_agent(i, fence=f, head=new, job=Job("gc", head=new))._replace(head=new)
        yield ("agent", i, "gc: raise fence", f), t.spend(gc=1)


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


def collect(s: State, i: int) -> Steps:
    head = s.ags[i].job.head
    assert head
    named = {x.uid for x in head.live + head.dead}
    any_fence = on("gc_any_fence") or on("gc_no_raise")
    gone = {o.uid for o in s.objs if o.uid not in named and (o.fence < head.fence or any_fence)}
    t = s.with_agent(i, job=Job())._replace(objs=tuple(o for o in s.objs if o.uid not in gone))
    yield ("agent", i, "gc: delete", sorted(gone)), t


def upload(s: State, i: int) -> Steps:
    a, job = s.ags[i], s.ags[i].job
    uid = f"{job.base}-{len(job.epochs)}-{a.fence}" if on("key_without_uid") else s.uids
    t = s.with_agent(i, job=job._replace(uid=uid, stage="sent"))._replace(uids=s.uids + 1)
    if on("merge_deletes_first"):
        old = {x.uid for x in a.head.live if job.base <= x.base < job.base + len(job.epochs)}
        t = t._replace(objs=tuple(o for o in t.objs if o.uid not in old))
    there = any(o.uid == uid for o in t.objs)
    objs = t.objs if there else (*t.objs, Object(uid, a.fence, job.base, job.epochs, s.inc))
    yield ("agent", i, "upload", uid, job.base, job.epochs), t._replace(objs=objs)
    if s.left.fault:
        yield ("agent", i, "upload LOST", uid), t.spend(fault=1)


def proposal(a: Agent, i: int) -> Head:
    """The head this agent would commit for the work in hand."""
    h, job = a.head, a.job
    h = h._replace(version=h.version + 1, fence=a.fence, writer=i, epoch=job.epoch)
    if job.kind == "cas":
        return h._replace(live=job.live, dead=job.dead)
    new = Entry(job.base, job.epochs, job.uid)
    return h._replace(live=(*h.live, new) if on("refused_not_read_back") else place(h.live, new))


def commit(s: State, i: int) -> Steps:
    a = s.ags[i]
    older = any(o.uid == a.job.uid and o.fence != a.fence for o in s.objs)
    if older and on("ownkey") and a.job.kind == "run" and not on("key_without_uid"):
        yield ("agent", i, "drop upload of an older fence"), s.with_agent(i, job=Job())
        return
    new = proposal(a, i)
    wait = s.with_agent(i, job=a.job._replace(sent=new))
    label = ("agent", i, "commit", new.live)
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
    a, h = s.ags[i], s.head
    new = a.job.sent
    assert new
    if h == new:
        return done(s, i, new)
    if on("loser_deletes") and new.live != a.head.live:
        s = s._replace(objs=tuple(o for o in s.objs if o.uid != a.job.uid))
    if h.fence > a.fence and not on("ignore_fence"):
        keep = a.job._replace(sent=None) if on("reuse_upload") and a.job.kind == "run" else Job()
        return s.with_agent(i, fence=0, head=Head(), job=keep)
    return s.with_agent(i, head=h, job=Job())


def done(s: State, i: int, new: Head) -> State:
    return s.with_agent(i, head=new, job=Job(), note=(new.version, new.end))
