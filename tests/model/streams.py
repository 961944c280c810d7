"""Objects that are written while they fill: one at a time, from where the live entries end, under a name that the head lists as pending."""

from tests.model.knowledge import view_of
from tests.model.state import Head, Job, State, Steps, Stream, on


def assigned(s: State, before: Head, after: Head, *, fails: bool) -> Head:
    """`after` with what is pending in it: the same as before while that begins where the live entries end and has not failed."""
    if before.pending is not None and not fails and after.end == before.end:
        return after
    if not s.left.stream and not (before.pending is not None and after.end == before.end):  # switched off: the current one comes first
        return after._replace(pending=None)
    return after._replace(pending=f"p{after.version}{'AB'[after.writer]}")


def is_stream(job: Job) -> bool:
    return job.kind == "run" and isinstance(job.uid, str) and job.uid.startswith("p")


def is_next(s: State, i: int, job: Job) -> bool:
    """Is it a run that follows the live entries, and goes into a stream?"""
    head = s.ags[i].head
    if head.pending is None or job.kind != "run" or job.base != head.end:
        return False
    taken = s.ags[i].stream
    return bool(s.left.stream) or (taken is not None and bool(taken.epochs))


def stream(s: State, i: int, run: Job) -> Steps:
    """What may be done about the open stream, where `run` is what follows in the log."""
    a = s.ags[i]
    begun = a.stream
    if begun is None:
        if a.mine != a.head.pending and not on("stream_same_name"):  # another process may have written under this name
            found = view_of(s, i, a.head)
            assert found  # it was just planned on
            again = Job("cas", live=found.live, dead=found.dead, epoch=found.epoch, start=found.start, stage="failed")
            yield ("agent", i, "stream: fail what is not mine, assign again"), s.with_agent(i, job=again)
            return
        base = a.head.end
        begun = Stream(a.head.pending, base)
    if not begun.closed or on("stream_grows_on"):
        more = run.epochs[len(begun.epochs) :]
        if more:
            t = begun._replace(epochs=begun.epochs + more)
            yield ("agent", i, "stream: take", begun.base + len(begun.epochs), more), s.with_agent(i, stream=t)
    if begun.epochs:
        closing = Job("run", begun.base, begun.epochs, epoch=run.epoch, uid=begun.uid, stage="confirmed" if begun.confirmed else "")
        following = run.epochs[len(begun.epochs) :]
        if on("stream_goes_ahead") and begun.closed and following:
            closing = Job("run", begun.base + len(begun.epochs), following, epoch=run.epoch)
        yield ("agent", i, "stream: close", begun.uid), s.with_agent(i, stream=begun._replace(closed=True), job=closing)


def settled(s: State, i: int) -> State:
    """What was taken for a name that is not pending any more is given up."""
    a = s.ags[i]
    return s if a.stream is None or a.head.pending == a.stream.uid else s.with_agent(i, stream=None)
