"""The layouts this version can read and write, by name."""

from collections.abc import Mapping, Sequence
from typing import NoReturn

from headwater_core.errors import UnsupportedFormat
from headwater_core.layouts.blocks import BlocksLayout
from headwater_core.layouts.chunks.chunks_layout import ChunksLayout
from headwater_core.layouts.offloader import NewRun, Offloader, StoredRun
from headwater_core.layouts.segment import SegmentLayout
from headwater_core.layouts.streaming import StreamingLayout
from headwater_core.objectstore.store import ObjectStore

_LAYOUTS: dict[str, Offloader] = {layout.name: layout for layout in (SegmentLayout(), BlocksLayout(), StreamingLayout(), ChunksLayout())}
LAYOUT_NAMES = tuple(sorted(_LAYOUTS.keys() - {StreamingLayout.name}))  # as runs are archived segment by segment


class NoOffloader:
    """In the place of an offloader that there is none of: every call says so."""

    preserves_batches = True

    def __init__(self, name: str) -> None:
        self.name = name

    def offload(self, store: ObjectStore, runs: Sequence[NewRun], extra_metadata: Mapping[str, str]) -> NoReturn:
        self._refuse()

    def read_offloaded(self, store: ObjectStore, run: StoredRun) -> NoReturn:
        self._refuse()

    def data_objects(self, run: StoredRun) -> Sequence[tuple[str, int]]:
        return [(run.key, run.size_bytes)]

    def delete_offloaded(self, store: ObjectStore, run: StoredRun) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise UnsupportedFormat(f"no offloader for layout {self.name[:40]!r}; this version knows {', '.join(sorted(_LAYOUTS))}")


def open_layout(name: str) -> Offloader:
    """The layout that an entry names, or a topic, with its defaults: what is written may be set otherwise. For one that is not known, every
    call of it raises UnsupportedFormat."""
    return _LAYOUTS.get(name) or NoOffloader(name)


def is_known(name: str) -> bool:
    """Whether this version reads and writes the layout."""
    return name in _LAYOUTS
