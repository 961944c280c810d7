"""The steps of one reader of everything that is live: pages first, then the objects."""

from tests.model import page_tree
from tests.model.page_tree import listed
from tests.model.state import GAP, Entry, Reader, Ref, State, Steps, Uid, on


def reader(s: State) -> Steps:
    r = s.reader
    ref = next((x for x in r.todo if isinstance(x, Ref)), None)
    if not r.head:
        if s.left.load:
            yield ("reader", "load head", s.head.version), s._replace(reader=_loaded(s)).spend(load=1)
    elif ref:
        page, at = page_tree.find(s.pages, ref), r.todo.index(ref)
        if page:
            t = s._replace(reader=r._replace(got=_with(r.got, listed(r.todo[:at])), todo=page.items + r.todo[at + 1 :]))
            yield ("reader", "read page", ref.page), t
        else:
            yield ("reader", "page not found", ref.page), s._replace(reader=_again(s, ref.page))
    else:
        got = _with(r.got, listed(r.todo))
        missing = [x.uid for x in got if x.uid != GAP and not any(o.uid == x.uid for o in s.objs)]
        if missing:
            yield ("reader", "object not found", missing[0]), s._replace(reader=_again(s, missing[0]))
        else:
            wrong = "" if _records(got) == _records(r.truth) else f"I10 a reader lists {got}, which no head says"
            yield ("reader", "done"), s._replace(reader=Reader(wrong=wrong))


def _loaded(s: State) -> Reader:
    return Reader(s.head, s.head.live, truth=page_tree.entries(s.head.live, s.pages) or (), look=s.look)


def _again(s: State, lost: Uid) -> Reader:
    """Not found: the head is loaded anew and the walk begins again; damage only if what is missing is still named."""
    r = s.reader
    if r.lost == lost or on("reader_calls_it_damage") or (on("reader_reloads_once") and r.lost is not None):
        return r._replace(wrong=f"I3 a reader reports {lost} damaged, which was collected")
    fresh = _loaded(s)._replace(lost=lost)
    return fresh._replace(got=r.got) if on("reader_goes_on") else fresh


def _with(got: tuple[Entry, ...], more: tuple[Entry, ...]) -> tuple[Entry, ...]:
    end = got[-1].end if got else 0
    return got + tuple(Entry(max(x.base, end), x.epochs[max(end - x.base, 0) :], x.uid) for x in more if x.end > end)


def _records(entries: tuple[Entry, ...]) -> list[tuple[int, int]]:
    return [(o, e) for x in entries for o, e in enumerate(x.epochs, x.base)]
