"""A maker of worlds that closes them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hydration.world import World


@pytest.fixture
def a_world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def make(**options: Any) -> World:
        world = World(tmp_path / f"world-{len(made)}", **options)
        made.append(world)
        return world

    yield make
    for world in made:
        world.close()
        if world.index is not None:
            world.index.close()
