"""Named points on the way of bytes, in the order in which a commit, a release or a recovery passes them.

Nothing happens there. Tests put an `observer` there that ends the process, or lets another one go first.
"""

from collections.abc import Callable


def _nothing(name: str) -> None:
    pass


observer: Callable[[str], None] = _nothing


def reached(name: str) -> None:
    """Say that the point `name` is passed."""
    observer(name)
