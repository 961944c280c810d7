"""A store that waits or fails when a test says so."""

import threading
from collections.abc import Callable, Mapping

from headwater_core.errors import HeadwaterError
from headwater_core.objectstore.store import DOCUMENT_BYTES_MAX
from tests.headwater_core.objectstore.memory import MemoryStore


class FlakyStore(MemoryStore):
    """
    go         reads of data objects wait for it; set by default
    refuse     gives the error that a call ends with, by operation and key; None for none
    spoil      changes what read_into delivers
    """

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.go.set()
        self.arrived = threading.Semaphore(0)
        self.refuse: Callable[[str, str], HeadwaterError | None] = lambda operation, key: None
        self.spoil: Callable[[str, memoryview], None] = lambda key, buffer: None

    def read_into(self, key: str, buffer: memoryview, *, start: int) -> Mapping[str, str]:
        if key.endswith(".log"):
            self.arrived.release()
            assert self.go.wait(20)
        self._refuse("read_into", key)
        metadata = super().read_into(key, buffer, start=start)
        self.spoil(key, buffer)
        return metadata

    def get(self, key: str, *, max_bytes: int = DOCUMENT_BYTES_MAX) -> tuple[bytes, str]:
        self._refuse("get", key)
        return super().get(key, max_bytes=max_bytes)

    def _refuse(self, operation: str, key: str) -> None:
        error = self.refuse(operation, key)
        if error is not None:
            raise error
