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
    notices  what a person must see to, though the agent is ready
    """

    def __init__(self, *, live: Mapping[str, Check], ready: Mapping[str, Check], notices: Mapping[str, Check] | None = None) -> None:
        self._live, self._ready, self._notices = dict(live), dict(ready), dict(notices or {})

    def live(self, exclude: Collection[str] = ()) -> list[CheckResult]:
        return _results(self._live, exclude)

    def ready(self, exclude: Collection[str] = ()) -> list[CheckResult]:
        return _results(self._ready, exclude)

    def notices(self) -> list[CheckResult]:
        """Return those for which there is a reason now."""
        return [found for found in _results(self._notices, ()) if found.reason]


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


def report(what: str, results: Collection[CheckResult], notices: Collection[CheckResult] = (), *, reasons: bool) -> str:
    """A line for each check, in the form of Kubernetes' own health endpoints, and one for all of them."""
    lines = [
        f"[+]{each.name} ok" if not each.reason else f"[-]{each.name} failed: {each.reason if reasons else 'reason withheld'}"
        for each in results
    ]
    lines += [f"[!]{each.name}: {each.reason if reasons else 'reason withheld'}" for each in notices]
    return "\n".join([*lines, f"{what} check {'failed' if any(each.reason for each in results) else 'passed'}"]) + "\n"
