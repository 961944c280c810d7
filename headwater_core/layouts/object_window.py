"""An object that is read from front to back, a window at a time."""

from headwater_core.objectstore.store import ObjectStore

WINDOW_BYTES = 1 << 20


class ObjectWindow:
    """object[position:end], read in ranges of a window's size or of what is wanted at once."""

    def __init__(self, store: ObjectStore, key: str, position: int, end: int) -> None:
        self._store, self._key, self._end = store, key, end
        self.position = position
        self._held = memoryview(b"")

    def peek(self, size_bytes: int) -> memoryview:
        """So many bytes. Each range is at most as long as what came before it: what is claimed and not there takes no memory."""
        while len(self._held) < size_bytes:
            left = len(self._held)
            start = self.position + left
            size = min(max(WINDOW_BYTES - left, min(left, size_bytes - left)), self._end - start)
            fresh = memoryview(bytearray(left + size))
            fresh[:left] = self._held
            self._store.read_into(self._key, fresh[left:], start=start)
            self._held = fresh
        return self._held[:size_bytes]

    def take(self, size_bytes: int) -> bytes:
        found = bytes(self.peek(size_bytes))
        self.position += size_bytes
        self._held = self._held[size_bytes:]
        return found
