"""Whether the agent lives, and whether it is ready: checks by name, each of which says in words why it fails."""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

Check = Callable[[], str]
"""Why it fails; "" while it holds. It answers at once, from what is known: no check waits for a disk or a store."""


class CheckResult(NamedTuple):
    """What one check came to; reason: "" where it holds."""

    name: str
    reason: str


class Health:
    """
    live   what only a restart mends
    ready  what the agent was started for
    """

    def __init__(self, *, live: Mapping[str, Check], ready: Mapping[str, Check]) -> None:
        self._live, self._ready = dict(live), dict(ready)

    def live(self, exclude: Collection[str] = ()) -> list[CheckResult]:
        return _results(self._live, exclude)

    def ready(self, exclude: Collection[str] = ()) -> list[CheckResult]:
        return _results(self._ready, exclude)


def _results(checks: Mapping[str, Check], exclude: Collection[str]) -> list[CheckResult]:
    found = []
    for name, check in checks.items():
        if name not in exclude:
            try:
                reason = check()
            except Exception as error:  # a check that cannot be made has not held
                reason = f"the check failed: {error!r}"
            found.append(CheckResult(name, reason))
    return found


def report(what: str, results: Collection[CheckResult], *, reasons: bool) -> str:
    """A line for each check, in the form of Kubernetes' own health endpoints, and one for all of them."""
    lines = [
        f"[+]{each.name} ok" if not each.reason else f"[-]{each.name} failed: {each.reason if reasons else 'reason withheld'}"
        for each in results
    ]
    return "\n".join([*lines, f"{what} check {'failed' if any(each.reason for each in results) else 'passed'}"]) + "\n"
