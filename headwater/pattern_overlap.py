"""Whether two patterns of topic names have a topic in common: a name says it best."""

import fnmatch
import re
from collections import deque

_TOKEN = re.compile(r"\[!?\]?[^]]*\]|.")  # as fnmatch reads them: a set, else one character
_FREE = "x"  # where anything may stand


def common_name(one: str, other: str) -> str | None:
    """A short name that both patterns match, with `*`, `?` and `[…]` as fnmatch has them; None where none was found. Only what stands in
    the patterns themselves is tried, and x: two sets that share but what lies within their ranges are taken to share nothing."""
    tokens = [_TOKEN.findall(each) for each in (one, other)]
    letters = [_FREE, *sorted({each for each in one + other if each.isalnum() or each in "._-"} - {_FREE})]
    starts, end = _positions(tokens, (0, 0)), (len(tokens[0]), len(tokens[1]))
    seen, waiting = set(starts), deque((at, "") for at in sorted(starts))
    while waiting:
        at, name = waiting.popleft()
        for letter in letters:
            after = [_after(tokens[which], at[which], letter) for which in (0, 1)]
            if after[0] is None or after[1] is None:
                continue
            found = _positions(tokens, (after[0], after[1]))
            if end in found:
                return name + letter
            waiting.extend((each, name + letter) for each in sorted(found - seen))
            seen |= found
    return None


def _after(tokens: list[str], at: int, letter: str) -> int | None:
    """Where the pattern goes on after `letter`; None where it does not match."""
    if at == len(tokens) or not fnmatch.fnmatchcase(letter, tokens[at]):
        return None
    return at if tokens[at] == "*" else at + 1


def _positions(tokens: list[list[str]], at: tuple[int, int]) -> set[tuple[int, int]]:
    """`at`, and what is reached from it by letting a `*` stand for nothing."""
    found, waiting = {at}, [at]
    while waiting:
        one, other = waiting.pop()
        stars = [which for which, place in enumerate((one, other)) if place < len(tokens[which]) and tokens[which][place] == "*"]
        more = {(one + (which == 0), other + (which == 1)) for which in stars} - found
        found |= more
        waiting += more
    return found
