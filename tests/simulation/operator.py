"""A person who pauses archiving in a simulated world and resumes it, and what must hold meanwhile."""

from typing import TYPE_CHECKING

from headwater_core.errors import HeadwaterError
from headwater_core.partition import PartitionId
from manifests.entry_tree import EntryTree
from manifests.pause_list import PauseScope
from manifests.repository import ManifestRepository
from tests.headwater_core.objectstore.faulty import NO_FAULTS
from tests.simulation.bucket import Violation

if TYPE_CHECKING:
    from tests.simulation.agents import Agent
    from tests.simulation.world import World


class Operator:
    """Writes to the bucket as `headwater pause` does; agents hear of it when they look, or all of them at once."""

    def __init__(self, world: "World") -> None:
        self._world, self._bucket = world, ManifestRepository(world.inner)
        self._paused = False
        self._frozen: dict[PartitionId, EntryTree] | None = None  # what is live, while nobody may change it

    def pause_or_resume(self) -> str:
        return self.resume() if self._paused else self._pause()

    def _pause(self) -> str:
        world = self._world
        self._bucket.change_pauses(lambda before: before.paused(PauseScope(), now_ms=world.clock.now_ms(), by="operator"))
        self._paused = True
        if world.random.random() < 0.5:
            return "an operator pauses everything"
        for agent in world.agents:
            faults, agent.store.faults = agent.store.faults, NO_FAULTS
            agent.finish()
            agent.store.land()
            agent.pauses.refresh()
            agent.store.faults = faults
        world.checks.after_action()
        self._frozen = {partition: head.entries for partition, head in world.checks.heads.items()}
        world.result.seen["all agents know of a pause"] += 1
        return "an operator pauses everything, and all agents know of it"

    def resume(self) -> str:
        self._bucket.change_pauses(lambda before: before.resumed(PauseScope(), now_ms=self._world.clock.now_ms()))
        self._paused, self._frozen = False, None
        return "an operator resumes everything"

    def look(self, agent: "Agent") -> str:
        """What the agent does once a minute. A look that fails leaves what was known."""
        try:
            agent.pauses.refresh()
        except HeadwaterError as error:
            return f"  {agent.name} does not hear of pauses: {error}"
        return ""

    def after_action(self) -> None:
        """While all know of a pause, nothing becomes live, and nothing ceases to be, whoever leads or starts again."""
        for partition, head in self._world.checks.heads.items():
            if self._frozen is not None and head.entries != self._frozen.get(partition, ()):
                raise Violation(f"{partition} is paused, and its live entries change")
