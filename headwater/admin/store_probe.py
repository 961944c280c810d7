"""A store that fails is asked whether it answers again: readiness must not wait for a call that an idle agent has no reason to make."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from headwater_core.objectstore.store import ObjectStore
from headwater_core.objectstore.store_meter import StoreMeter
from manifests import keys

PROBE_S = 10.0  # between two looks; twice that is less than a store may fail before the agent is not ready


class StoreProbe:
    """meter: which counts the calls of `store`, and so learns what comes of a probe"""

    def __init__(self, store: ObjectStore, meter: StoreMeter) -> None:
        self._store, self._meter = store, meter

    def look(self) -> None:
        """Ask for one small document, if the store has answered nothing for a while though it was called. Raises nothing."""
        if self._meter.health().failing_s >= PROBE_S:
            with suppress(Exception):  # the meter has noted it; that the document is absent is an answer
                self._store.get(keys.OWNER)

    @contextmanager
    def probing(self) -> Iterator[None]:
        """Looks, for the time of the block, in a thread that nothing waits for: a probe may hang."""
        stop = threading.Event()

        def run() -> None:
            while not stop.wait(PROBE_S):
                self.look()

        threading.Thread(target=run, name="store-probe", daemon=True).start()
        try:
            yield
        finally:
            stop.set()
