"""An archived run as a file."""

import io

from headwater_core.errors import CorruptData, NotFound, TruncatedData
from headwater_core.layouts import open_layout
from headwater_core.objectstore.store import ObjectStore
from manifests.entry import Entry


class ArchivedRun(io.RawIOBase):
    """The bytes of one entry, dead ones included: every read is a ranged GET of what is requested. Positions are the run's.

    Raises CorruptData when the object that the manifest lists is not there, TruncatedData when it ends early.
    """

    def __init__(self, store: ObjectStore, entry: Entry) -> None:
        super().__init__()
        self._entry, self._reader = entry, open_layout(entry.layout).read_offloaded(store, entry)
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        if whence != io.SEEK_SET:
            raise io.UnsupportedOperation("seek from elsewhere than the start")
        self._position = position
        return position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        size = max(0, min(len(buffer), self._entry.run_bytes - self._position))
        if size:
            self.fetch(memoryview(buffer)[:size], self._position)
        self._position += size
        return size

    def fetch(self, buffer: memoryview, start: int) -> None:
        """Fill `buffer` from byte `start` on; moves nothing."""
        entry = self._entry
        try:
            self._reader.read_into(buffer, start)
        except NotFound as error:
            raise CorruptData(entry.key, start, "the manifest lists it, the store does not have it") from error
        except TruncatedData as error:
            raise TruncatedData(entry.key, start, f"{entry.size_bytes} bytes are listed") from error
