"""A recovery of another cluster, which takes the archive over once everything is in its directories."""

from tests.model.state import State, Steps, on

RECOVERED = 2  # the writer of the head that has changed hands


def take_over(s: State) -> Steps:
    h, planned = s.head, s.planned
    if s.started:
        return
    if planned is None:
        if s.left.take:
            yield ("recovery", "plan", f"end {h.end}"), s._replace(planned=h).spend(take=1)
        return
    is_same = (h.end, h.epoch) == (planned.end, planned.epoch) or on("take_unplanned")
    if s.taken:  # nobody else changes it any more: so this look counts
        if is_same:
            yield ("recovery", "a broker starts"), s._replace(started=True)
        else:
            yield ("recovery", "archived on before it was taken: plan again"), s._replace(planned=h)
        return
    if not is_same:
        yield ("recovery", "archived on since: plan again"), s._replace(planned=None)
    label = ("recovery", "take over", h.version)
    if on("take_by_document"):
        yield label, s._replace(taken=True)
        return
    owner = h.owner if on("take_by_fence") else 1
    new = h._replace(version=h.version + 1, fence=h.fence + 1, writer=RECOVERED, owner=owner, pending=None)
    yield label, s._replace(head=new, taken=True)
