"""An agent that counts its store's calls: `python -m bench.metered_agent COUNTS CONFIG`. COUNTS is a file with a JSON object, written
twice a second."""

import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import headwater.wiring
from headwater.cli import run
from headwater_core.objectstore.store import NewObject
from headwater_core.objectstore.store_url import open_store

CALLS = ("put", "create", "replace", "get", "read_into", "stream_into", "stat", "list", "delete")


class MeteredStore:
    """`inner`, whose calls are counted by name."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        if name == "put_all":
            return self._put_all
        found = getattr(self._inner, name)
        if name not in CALLS:
            return found

        def counted(*given: Any, **named: Any) -> Any:
            self.calls[name] += 1
            return found(*given, **named)

        return counted

    def _put_all(self, objects: Sequence[NewObject]) -> Any:
        done = self._inner.put_all(objects)
        self.calls["put"] += len(objects)
        return done


def _write(store: MeteredStore, path: Path) -> None:
    done = threading.Event()
    while not done.wait(0.5):
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(store.calls))
        os.replace(partial, path)


def _metered(path: Path) -> Any:
    def opened(*given: Any, **named: Any) -> MeteredStore:
        store = MeteredStore(open_store(*given, **named))
        threading.Thread(target=_write, args=(store, path), daemon=True).start()
        return store

    return opened


if __name__ == "__main__":
    counts, config = sys.argv[1:]
    vars(headwater.wiring)["open_store"] = _metered(Path(counts))
    sys.exit(run(["--config", config, "agent"]))
