"""The native layout."""

import io

import pytest

from headwater_core.errors import UnsupportedFormat
from headwater_core.layouts import NewRun, Offloader, open_layout
from tests.headwater_core.layouts.contract import INDEX_KEY, KEY, RUN, OffloaderContract, scanned
from tests.headwater_core.objectstore.memory import MemoryStore


class TestSegmentLayout(OffloaderContract):
    @pytest.fixture
    def layout(self) -> Offloader:
        return open_layout("segment")


def test_an_object_is_the_run_itself() -> None:
    store = MemoryStore()
    open_layout("segment").offload(store, [NewRun(KEY, INDEX_KEY, io.BytesIO(RUN), scanned())])
    assert store.get(KEY)[0] == RUN


def test_an_unknown_layout_is_named_with_the_known_ones() -> None:
    with pytest.raises(UnsupportedFormat, match=r"'blocks'.*segment"):
        open_layout("blocks")
