"""Breadth first over every interleaving, so that the first violation found has a shortest trace."""

from typing import NamedTuple

from tests.model.cases import MUTANTS, RULES, SCENARIOS, SCENARIOS_EXTRA, Left
from tests.model.invariants import WITNESSES, broken, broken_step, forget_settled
from tests.model.protocol import first, steps
from tests.model.state import IN_FORCE, Label, State

STATES_MAX = 4_000_000


class Found(NamedTuple):
    states: int
    steps: int
    witnesses: frozenset[str]
    violation: str | None
    trace: list[Label]


def explore_scenario(name: str) -> Found:
    """All rules in force."""
    return _explore(SCENARIOS.get(name) or SCENARIOS_EXTRA[name], set(RULES), witnesses=True)


def explore_mutant(name: str) -> Found:
    """A rule left out, or a mistake planted."""
    mutant = MUTANTS[name]
    return _explore(SCENARIOS.get(mutant.scenario) or SCENARIOS_EXTRA[mutant.scenario], set(RULES) - set(mutant.without.split()) | {name})


def _explore(left: Left, in_force: set[str], *, witnesses: bool = False) -> Found:
    IN_FORCE.clear()
    IN_FORCE.update(in_force)
    forget_settled()
    start = first(left)
    parents: dict[State, tuple[State, Label] | None] = {start: None}
    frontier, count, unseen = [start], 0, dict(WITNESSES) if witnesses else {}

    def found(violation: str | None, trace: list[Label]) -> Found:
        return Found(len(parents), count, frozenset(WITNESSES.keys() - unseen.keys()), violation, trace)

    def trace(s: State) -> list[Label]:
        out = []
        while came := parents[s]:
            s, label = came
            out.append(label)
        return out[::-1]

    while frontier:
        reached = []
        for s in frontier:
            for label, t in steps(s):
                count += 1
                if t.head is not s.head and (bad := broken_step(s, t)):
                    return found(bad, [*trace(s), label])
                if t in parents:
                    continue
                parents[t] = (s, label)
                if bad := broken(t):
                    return found(bad, trace(t))
                for name in [name for name, holds in unseen.items() if holds(t)]:
                    del unseen[name]
                reached.append(t)
        frontier = reached
        if len(parents) > STATES_MAX:
            raise RuntimeError(f"more than {STATES_MAX} states: tighten the bounds")
    return found(None, [])


def show(label: Label) -> str:
    who, *what = label
    if who == "broker":
        return f"broker {'AB'[what[0]]}: " + " ".join(map(str, what[1:]))
    if who == "agent":
        return f"  agent {'AB'[what[0]]}: " + " ".join(map(str, what[1:]))
    return f"    {who}: " + " ".join(map(str, what))
