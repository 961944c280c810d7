"""Garbage collection, which has raised the fence by a commit."""

from tests.model import page_tree
from tests.model.knowledge import knows_pages
from tests.model.page_tree import listed
from tests.model.state import Job, Page, Ref, State, Steps, Uid, on


def read_pages(s: State, i: int) -> Steps:
    """What the head that gc has fenced names. When a page of it cannot be read, nothing is deleted."""
    job = s.ags[i].job
    assert job.head
    live, dead = job.head.live, job.head.dead
    found = list(page_tree.walk(live, s.pages))
    if not on("gc_reads_live_only"):
        found += page_tree.walk(dead, s.pages)
    names = {x.page if isinstance(x, Ref) else x.uid for x in live + dead} | {ref.page for ref, _ in found}

    def read(pages: list[Page]) -> Job:
        return job._replace(named=tuple(sorted(names | {x.uid for page in pages for x in listed(page.items)}, key=str)))

    pages = [] if on("gc_reads_head_only") else [page for _, page in found if page]
    if all(page for _, page in found) or on("gc_skips_missing"):
        yield ("agent", i, "gc: read pages"), s.with_agent(i, job=read(pages))
    else:
        yield ("agent", i, "gc: page not found, nothing is deleted"), s.with_agent(i, job=Job())
    if s.left.fault and found:
        yield ("agent", i, "gc: page UNREADABLE"), s.with_agent(i, job=read([]) if on("gc_skips_unreadable") else Job()).spend(fault=1)


def collect(s: State, i: int) -> Steps:
    job = s.ags[i].job
    assert job.head
    named = {x.uid for x in listed(job.head.live + job.head.dead)} if job.named is None else job.named
    named = {*named, *(() if on("gc_ignores_pending") else (job.head.pending,))}
    fence = job.head.fence
    any_fence = on("gc_any_fence") or on("gc_no_raise")
    pages = s.pages if knows_pages(s, i) else ()
    orphans = {o.uid for o in s.objs if o.uid not in named and (o.fence < fence or any_fence)}
    orphans |= {p.uid for p in pages if p.uid not in named and (p.fence < fence or any_fence or on("gc_young_pages"))}
    gone, t = orphans, s.with_agent(i, job=Job())
    if s.left.lease:
        seen = dict(s.seen)
        gone = orphans if on("no_lease") else orphans & seen.keys()
        unreferenced = orphans if on("look") else {x.uid for x in s.objs + pages if x.uid not in named}
        seen = {uid: seen.get(uid, s.look + 1) for uid in sorted(unreferenced - gone, key=str)}
        t = t._replace(look=s.look + 1, seen=tuple(sorted(seen.items())))
        if promised(s, gone):
            t = t._replace(reader=s.reader._replace(wrong="I3 what a reader's head names was deleted within its lease"))
    t = t._replace(objs=tuple(o for o in s.objs if o.uid not in gone), pages=tuple(p for p in s.pages if p.uid not in gone))
    yield ("agent", i, "gc: delete", sorted(gone, key=str)), t


def promised(s: State, gone: set[Uid]) -> bool:
    """Does the reader hold a head that names some of this, loaded after gc had seen it unreferenced, or never seen it so?"""
    held = s.reader.head
    if not held:
        return False
    seen = dict(s.seen)
    named = {x.uid for x in s.reader.truth} | {ref.page for ref, _ in page_tree.walk(held.live, s.pages)}
    return any(s.reader.look >= seen.get(uid, 0) for uid in named & gone)
