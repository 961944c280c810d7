"""Where a scenario begins, and all steps that are possible in a state."""

from tests.model.agents import agent, done, proposal, with_pages
from tests.model.brokers import brokers
from tests.model.cases import Left
from tests.model.reader import reader
from tests.model.state import Agent, Entry, Head, Job, Object, Page, Replica, State, Steps
from tests.model.take_over import take_over


def first(left: Left) -> State:
    """One record and no archive; or `begun` records, which A has archived under fence 1, each by itself.

    Then B lacks all but one of them where an unclean election is among the bounds.
    """
    count = left.begun
    if not count:
        return State(left, ags=(Agent(old=left.old > 0), Agent()))
    recs, in_sync = (1,) * count, not left.unclean
    held = recs if in_sync else recs[:1]
    s = State(
        left,
        reps=(Replica(recs=recs, hw=count, lead=1, full=in_sync), Replica(recs=held, hw=len(held))),
        head=Head(1, 1, 0, epoch=1),
        objs=tuple(Object(uid, 1, uid, (1,), 1) for uid in range(count)),
        ags=(Agent(1, Head(1, 1, 0, epoch=1), old=left.old > 0), Agent()),
        uids=count,
    )
    live = tuple(Entry(uid, (1,), uid) for uid in range(count))
    s = with_pages(s.with_agent(0, job=Job("cas", live=live, epoch=1)), 0)
    head = proposal(s, 0)
    assert isinstance(head, Head)
    return done(s._replace(head=head), 0, head).with_agent(0, note=None, spare=())


def steps(s: State) -> Steps:
    yield from brokers(s)
    if s.left.switch:
        yield ("operator", "streams", "off" if s.left.stream else "on"), s.spend(switch=1, stream=2 * s.left.stream - 1)
    yield from agent(s, 0)
    yield from agent(s, 1)
    yield from reader(s)
    yield from take_over(s)
    for k, request in enumerate(s.net):
        t = s._replace(net=s.net[:k] + s.net[k + 1 :])
        if isinstance(request, Page):
            yield ("net", "delayed page arrives", request.uid), t.with_page(request)
        else:
            expected, new = request
            applied = s.head == expected
            yield ("net", "delayed commit arrives", "applied" if applied else "refused"), t._replace(head=new) if applied else t
