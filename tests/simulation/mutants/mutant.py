"""A planted mistake, and all that there are."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

Plant = Callable[[ExitStack], None]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mistake, and the theme of the seeds that find it.

    rare     it takes hundreds of them
    in_race  it takes more than that: `test_races` leads to it
    """

    name: str
    what: str
    theme: str | None
    rare: bool
    in_race: bool
    plant: Plant

    @property
    def seeds(self) -> int:
        """Within so many it must be caught; a change anywhere shuffles what seeds do, so the limit is generous."""
        return 5000 if self.rare else 500


MUTANTS: dict[str, Mutant] = {}


def mutant(what: str, *, theme: str | None = None, rare: bool = False, in_race: bool = False) -> Callable[[Plant], Plant]:
    def listed(plant: Plant) -> Plant:
        MUTANTS[plant.__name__] = Mutant(plant.__name__, what, theme, rare, in_race, plant)
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
