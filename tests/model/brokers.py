"""The steps of the brokers."""

from tests.model.state import Head, Replica, State, Steps, on


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
