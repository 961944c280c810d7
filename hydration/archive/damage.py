"""Archived objects that are known to be damaged: remembered over restarts until they are read well, or no manifest lists them."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import structlog

from headwater_core.clock import Clock
from headwater_core.errors import CorruptData, HeadwaterError, NotFound
from headwater_core.files import disk_errors, replace_file
from headwater_core.partition import PartitionId
from hydration.archive.chunks import Chunk
from hydration.cache.cache_directory import chunk_name, folder, index_name
from manifests.document import FORMAT, prepared, seal, unseal
from manifests.entry import Entry

DAMAGE_S, DAMAGE_MOST_S = 5.0, 300.0  # before a chunk that did not verify is fetched again, and after many times
TURN_S = 60.0  # between two rechecks, and two attempts to write the list where nothing changes
RECHECK_S = 900.0  # between two of one object: each fetches the damaged bytes twice
DAMAGES_MAX = 1000  # remembered; the oldest is forgotten
TEXT_MAX = 500  # characters of a reason
FILE_BYTES_MAX = 8 << 20  # of the list: DAMAGES_MAX of the longest keys and reasons take less

log = structlog.get_logger()

_Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """Describe one damaged chunk, or an object that is missing or has a damaged index.

    offset      first offset of the chunk, or one that could not be read
    position    where the chunk begins in the run
    size_bytes  of the chunk; 0: it is no chunk
    where, byte, reason  see CorruptData
    """

    partition: PartitionId
    key: str
    uid: str
    offset: _Number
    position: _Number = 0
    size_bytes: _Number = 0
    where: str
    byte: _Number
    reason: str

    @property
    def name(self) -> str:
        """Return the name that it has in the cache."""
        if self.size_bytes:
            return chunk_name(self.partition, self.uid, self.position, self.size_bytes)
        return index_name(self.partition, self.uid)

    @property
    def chunk(self) -> Chunk | None:
        """Return None where it is not known which one is damaged."""
        return Chunk(0, self.position, self.size_bytes, self.offset) if self.size_bytes else None

    @property
    def error(self) -> CorruptData:
        return CorruptData(self.where, self.byte, self.reason)


@prepared
class DamageList(msgspec.Struct, frozen=True, kw_only=True):
    format: tuple[int, int] = FORMAT
    damages: Annotated[list[Damage], msgspec.Meta(max_length=DAMAGES_MAX)] = []


@dataclass(slots=True)
class _Known:
    """pause_s  after `failed_s`, before a reader has it fetched again"""

    damage: Damage
    failed_s: float = float("-inf")
    pause_s: float = 0.0
    checked_s: float = float("-inf")


class KnownDamage:
    """Know what did not verify, so that not every retry of every client fetches it twice again: first after a pause, then after longer
    ones. For many threads. `run` writes and `run_rechecks` reads again, each in its own thread: a disk or a store may hang.

    path  of the list; None: it ends with the process. What cannot be read there is unknown
    """

    def __init__(self, clock: Clock, path: Path | None = None) -> None:
        self._clock, self._path = clock, path
        self._lock, self._wake = threading.Lock(), threading.Event()
        self._known: OrderedDict[str, _Known] = OrderedDict()  # by Damage.name; the one read longest ago first
        self._is_saved = True
        for damage in _load(path) if path is not None else ():
            self._known[damage.name] = _Known(damage)

    def check(self, name: str) -> None:
        """Raises CorruptData while it is not worth another try."""
        with self._lock:
            known = self._known.get(name)
        if known is not None and self._clock.monotonic_s() - known.failed_s < known.pause_s:
            raise known.damage.error

    def keys(self) -> dict[str, set[str]]:
        """Return the keys of damaged objects by the partition's folder of the cache."""
        found: dict[str, set[str]] = {}
        with self._lock:
            for known in self._known.values():
                found.setdefault(folder(known.damage.partition), set()).add(known.damage.key)
        return found

    def note(self, damage: Damage) -> None:
        now_s = self._clock.monotonic_s()
        with self._lock:
            before = self._known.pop(damage.name, None)
            pause_s = max(DAMAGE_S, min(2 * before.pause_s, DAMAGE_MOST_S)) if before is not None else DAMAGE_S
            self._known[damage.name] = _Known(damage, now_s, pause_s, now_s)
            while len(self._known) > DAMAGES_MAX:
                self._known.popitem(last=False)
            self._is_saved = self._is_saved and before is not None and before.damage == damage
        if before is None or damage.size_bytes:  # the pause is of chunks alone: every retry meets the others
            partition, reason = str(damage.partition), str(damage.error)
            log.error("object_damaged", partition=partition, key=damage.key, position=damage.position, reason=reason)
        self._wake.set()

    def forget(self, name: str, reason: str = "it was read well") -> None:
        if name not in self._known:
            return
        with self._lock:
            known = self._known.pop(name, None)
            self._is_saved = False
        if known is not None:
            log.info("object_damage_cleared", partition=str(known.damage.partition), key=known.damage.key, reason=reason)
        self._wake.set()

    def due(self) -> Damage | None:
        """Return the one that was looked at longest ago, where that is RECHECK_S ago or more. It counts as looked at now."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            known = next(iter(self._known.values()), None)
            if known is None or now_s - known.checked_s < RECHECK_S:
                return None
            known.checked_s = now_s
            self._known.move_to_end(known.damage.name)
            return known.damage

    def save(self) -> None:
        """Write what has changed since the last time. Raises what `replace_file` raises; then it is still to be saved."""
        with self._lock:
            damages, is_saved, self._is_saved = [known.damage for known in self._known.values()], self._is_saved, True
        if is_saved or self._path is None:
            return
        try:
            replace_file(self._path, seal(DamageList(damages=damages)))
        except HeadwaterError:
            with self._lock:
                self._is_saved = False
            raise

    def run(self, stop: threading.Event) -> None:
        """Write what changes until `stop` is set (see `wake`), and once more then."""
        while True:
            is_last = stop.is_set()
            try:
                self.save()
            except HeadwaterError as error:
                log.warning("damage_list_not_saved", reason=str(error))
            if is_last:
                return
            self._wake.wait(TURN_S)
            self._wake.clear()

    def run_rechecks(self, recheck: Callable[[], object], stop: threading.Event) -> None:
        """Have one object read again every TURN_S until `stop` is set. recheck: reads one that is due"""
        while not stop.is_set():
            try:
                recheck()
            except (CorruptData, NotFound):
                pass  # it was logged: the object is as it was
            except Exception as error:  # of any kind: there is a next one
                log.warning("damage_recheck_postponed", reason=str(error) or repr(error))
            stop.wait(TURN_S)  # and not `_wake`: what a recheck finds must not begin the next one

    def wake(self) -> None:
        self._wake.set()


def damage_of(partition: PartitionId, entry: Entry, error: CorruptData, *, offset: int, chunk: Chunk | None = None) -> Damage:
    """Describe what `error` says of an object. chunk: the damaged one, where that is known; offset: see Damage"""
    return Damage(
        partition=partition,
        key=entry.key,
        uid=entry.uid,
        offset=offset,
        position=chunk.position if chunk is not None else 0,
        size_bytes=chunk.size_bytes if chunk is not None else 0,
        where=error.where[:TEXT_MAX],
        byte=max(0, error.position),
        reason=error.reason[:TEXT_MAX],
    )


def _load(path: Path) -> list[Damage]:
    """Return what the file lists; nothing where it cannot be read. Then it is kept aside, since it may be a newer version's."""
    try:
        with disk_errors(path), suppress(FileNotFoundError):
            with path.open("rb") as file:
                raw = file.read(FILE_BYTES_MAX + 1)
            if len(raw) > FILE_BYTES_MAX:
                raise CorruptData(str(path), FILE_BYTES_MAX, "longer than any list of damaged objects")
            return unseal(raw, DamageList, str(path), lambda found: [(damage.name, damage.chunk) for damage in found.damages]).damages
    except HeadwaterError as error:
        log.warning("damage_list_unknown", reason=str(error))
        with suppress(OSError):
            path.rename(path.with_name(f"{path.name}.unreadable"))
    return []
