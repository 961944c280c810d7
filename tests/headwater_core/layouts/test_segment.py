"""The native layout."""

import pytest

from headwater_core.errors import UnsupportedFormat
from headwater_core.layouts import Offloader, is_known, open_layout
from tests.headwater_core.layouts.contract import RUN, OffloaderOnBadNetwork, new_run
from tests.headwater_core.objectstore.memory import MemoryStore


class TestSegmentLayout(OffloaderOnBadNetwork):
    @pytest.fixture
    def layout(self) -> Offloader:
        return open_layout("segment")


def test_an_object_is_the_run_itself() -> None:
    store, run = MemoryStore(), new_run(0, (".log", ".index"))
    open_layout("segment").offload(store, [run], {})
    assert store.get(run.key)[0] == RUN


def test_an_unknown_layout_is_named_with_the_known_ones() -> None:
    assert not is_known("bricks")
    with pytest.raises(UnsupportedFormat, match=r"'bricks'.*segment"):
        open_layout("bricks").offload(MemoryStore(), [], {})
