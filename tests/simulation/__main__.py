"""`python -m tests.simulation --seeds 20000`: more seeds than the tests run; `--first 4711 --seeds 1` replays one and prints its trace.

Without a theme each seed draws one of those that are not apart. `--theme apart --seeds 2000` runs so many of each of these.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path

from tests.simulation.mutants import MUTANTS, planted
from tests.simulation.world import APART, THEMES, SimulationResult, in_memory, run_seed

_SHOWN_MAX = 5


def _run_seed(what: tuple[str | None, int], *, mutant: str | None, within: Path | None = None) -> tuple[str | None, SimulationResult]:
    theme, seed = what
    with planted(mutant):
        return theme, run_seed(seed, theme=theme, within=within)


def themes_of(name: str | None) -> tuple[str | None, ...]:
    """Those that an argument names; None: as each seed draws it."""
    groups: dict[str | None, tuple[str | None, ...]] = {None: (None,), "all": tuple(sorted(THEMES)), "apart": tuple(sorted(APART))}
    return groups.get(name, (name,))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="Simulate archivers, store and brokers, seed by seed.")
    parser.add_argument("--seeds", type=int, default=1000, metavar="N", help="how many (default 1000)")
    parser.add_argument("--first", type=int, default=0, metavar="S", help="the first one (default 0)")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), metavar="NAME", help="plant a mistake: " + ", ".join(sorted(MUTANTS)))
    parser.add_argument(
        "--theme",
        choices=[*sorted(THEMES), "all", "apart"],
        metavar="NAME",
        help="what every seed is rich in: " + ", ".join(sorted(THEMES)) + "; all: each of them in turn; apart: each that no seed draws",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (default: one per core)")
    arguments = parser.parse_args()
    run = partial(_run_seed, mutant=arguments.mutant)
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    wanted = [(theme, seed) for theme in themes_of(arguments.theme) for seed in seeds]
    if len(wanted) == 1:
        return _show(run(wanted[0])[1])
    started, seen, violated = time.monotonic(), Counter[str](), 0
    with (
        tempfile.TemporaryDirectory(prefix="headwater-", dir=in_memory()) as root,  # outlives workers that are stopped within a seed
        multiprocessing.Pool(arguments.jobs) as pool,
    ):
        for done, (theme, result) in enumerate(pool.imap(partial(run, within=Path(root)), wanted, chunksize=8), 1):
            seen += result.seen
            if result.violation:
                violated += 1
                print(f"seed {result.seed}{'' if theme is None else f' of {theme}'}: {result.violation}", flush=True)
                if arguments.mutant or violated == _SHOWN_MAX:
                    pool.terminate()
                    break
            elif done % 1000 == 0:
                print(
                    f"{done} seeds{'' if theme is None else f', now {theme}'}, {time.monotonic() - started:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )
    for name, count in sorted(seen.items(), key=lambda item: -item[1]):
        print(f"{count:9}  {name}")
    print(f"{done} seeds, {time.monotonic() - started:.0f} s: {f'{violated} VIOLATED' if violated else 'nothing violated'}")
    return bool(violated)


def _show(result: SimulationResult) -> int:
    for number, line in enumerate(result.trace, 1):
        print(f"{number:4} {line}")
    print(f"seed {result.seed}: {result.violation or 'nothing violated'}")
    return bool(result.violation)


if __name__ == "__main__":
    sys.exit(main())
