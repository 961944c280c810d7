"""Explore the commit protocol: every default scenario with all rules in force, unless told otherwise."""

import argparse
import sys
import time

from tests.model.cases import EXPECTED_QUIET, MUTANTS, RULES, SCENARIOS, SCENARIOS_EXTRA
from tests.model.invariants import WITNESSES
from tests.model.search import Found, explore_mutant, explore_scenario, show


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--scenario", action="append", choices=[*SCENARIOS, *SCENARIOS_EXTRA])
    parser.add_argument("--mutant", action="append", choices=MUTANTS, metavar="NAME")
    parser.add_argument("--all-mutants", action="store_true")
    parser.add_argument("--list", action="store_true", help="scenarios with their bounds, rules, mutants")
    args = parser.parse_args()
    if args.list:
        return list_cases()
    if args.mutant or args.all_mutants:
        return run_mutants(args.mutant or list(MUTANTS))
    return run_scenarios(args.scenario or list(SCENARIOS))


def list_cases() -> int:
    print("scenarios")
    for name, left in (SCENARIOS | SCENARIOS_EXTRA).items():
        print(f"  {name:24} {', '.join(f'{bound} {count}' for bound, count in left._asdict().items() if count)}")
    print("rules")
    for name, rule in RULES.items():
        print(f"  {name:24} {rule}")
    print("mutants")
    for name, mutant in MUTANTS.items():
        print(f"  {name:24} {mutant.what}")
    return 0


def run_mutants(names: list[str]) -> int:
    """0 when each is caught, or is expected not to be since other rules imply it."""
    right = 0
    for name in names:
        what, scenario, without = MUTANTS[name]
        found = explore_mutant(name)
        print(f"\n{name}: {what}\n  scenario {scenario}" + (f", without {without}" if without else ""))
        expected = bool(found.violation) != (name in EXPECTED_QUIET)
        right += expected
        if found.violation:
            print(f"  VIOLATED after {len(found.trace)} steps ({found.states} states): {found.violation}")
            print_trace(found)
        else:
            print(f"  not caught in {found.states} states")
        if not expected:
            print("  <-- not as expected")
    print(f"\n{right} of {len(names)} as expected")
    return 0 if right == len(names) else 1


def run_scenarios(names: list[str]) -> int:
    """0 when nothing is violated and, in a run of all of them, every witness was reached: else it would prove nothing."""
    good, states, began_s = True, 0, time.monotonic()
    reached: dict[str, list[str]] = {witness: [] for witness in WITNESSES}
    for name in names:
        scenario_began_s = time.monotonic()
        found = explore_scenario(name)
        states += found.states
        good = good and not found.violation
        took_s = time.monotonic() - scenario_began_s
        print(f"{name:9} {found.states:9} states {found.steps:9} steps {took_s:6.1f} s  {found.violation or 'OK'}", flush=True)
        print_trace(found)
        for witness in found.witnesses:
            reached[witness].append(name)
    print("\nwitnesses (reached in)")
    for witness, where in reached.items():
        print(f"  {witness:52} {', '.join(where) or 'NEVER'}")
    if set(SCENARIOS) <= set(names):
        good = good and all(reached.values())
    print(f"\n{states} states, {time.monotonic() - began_s:.0f} s: " + ("OK" if good else "FAILED"))
    return 0 if good else 1


def print_trace(found: Found) -> None:
    for n, label in enumerate(found.trace, 1):
        print(f"  {n:3}. {show(label)}")


if __name__ == "__main__":
    sys.exit(main())
