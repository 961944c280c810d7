"""Who looks at a simulated world, and is not part of it."""

from random import Random
from typing import TYPE_CHECKING

from tests.simulation.actors import Actor
from tests.simulation.agents import LookedAtLogs, Trouble
from tests.simulation.brokers import Brokers

if TYPE_CHECKING:
    from tests.simulation.world import World


class Onlooker:
    """As the world, for a look: with a random source of its own, and nothing happens meanwhile."""

    running: Actor | None = None

    def __init__(self, world: "World", random: Random) -> None:
        self._world, self.random = world, random

    @property
    def brokers(self) -> Brokers:
        return self._world.brokers

    @property
    def compacted(self) -> bool:
        return self._world.compacted

    @property
    def trouble(self) -> Trouble:
        return self._world.trouble

    def pause(self, at: str) -> None:
        pass

    def logs(self, beside: int) -> LookedAtLogs:
        return LookedAtLogs(self, beside)
