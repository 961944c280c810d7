"""A planted mistake, and all that there are."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any
from unittest.mock import patch

Plant = Callable[[ExitStack], None]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mistake, and the theme of the seeds that find it.

    rare     it takes hundreds of them
    in_race  it takes more than that: `test_races` leads to it
    noted    a seed that found it; it is the first to be tried
    """

    name: str
    what: str
    theme: str | None
    rare: bool
    in_race: bool
    plant: Plant
    noted: int

    @property
    def seeds(self) -> Iterator[int]:
        """Within these it must be caught; a change anywhere shuffles what seeds do, so there are many, and a note may be out of date."""
        return chain([self.noted], range(5000 if self.rare else 500))


MUTANTS: dict[str, Mutant] = {}


def mutant(what: str, *, theme: str | None = None, rare: bool = False, in_race: bool = False, noted: int = 0) -> Callable[[Plant], Plant]:
    def listed(plant: Plant) -> Plant:
        MUTANTS[plant.__name__] = Mutant(plant.__name__, what, theme, rare, in_race, plant, noted)
        return plant

    return listed


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    with ExitStack() as stack:
        if name:
            MUTANTS[name].plant(stack)
        yield


def patch_in(stack: ExitStack, where: Any, name: str, value: Any) -> None:
    """Until the stack ends, `name` in `where` is `value`."""
    stack.enter_context(patch.object(where, name, value))
