"""What an agent can read: an old one knows no pages."""

from tests.model import page_tree
from tests.model.page_tree import listed
from tests.model.state import Head, State, View, on


def knows_pages(s: State, i: int) -> bool:
    return bool(s.left.inline) and not s.ags[i].old


def needs_upgrade(s: State, i: int) -> bool:
    """An old agent leaves a head with pages alone."""
    return s.head.format > 1 and not knows_pages(s, i) and not on("old_agent_commits")


def view_of(s: State, i: int, head: Head) -> View | None:
    """What `head` says to this agent; None when a page of it is not found."""
    if knows_pages(s, i):
        return page_tree.view(head, s.pages)
    return View(head.epoch, listed(head.live), listed(head.dead), 0, head.start, head.trimmed)
