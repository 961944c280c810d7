"""Which store a data directory belongs to (design §3): store.json here and headwater.json there repeat one random id.

Another store than the one that a data directory has archived to, or an archive whose disk is not mounted, looks empty. A new
archive there would hide what is archived, so nothing is written before both documents agree.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from headwater_core.clock import Clock
from headwater_core.errors import CorruptData, DataDirFull, DiskFull, HeadwaterError, StoreGone, WrongStore
from headwater_core.files import disk_errors, replace_file
from manifests.document import FORMAT, prepared, seal, unseal
from manifests.repository import ManifestRepository, foreign_bucket
from manifests.topic import Owner

NAME = "store.json"
RETRY_S = 1.0  # after a failed check; it doubles with each one more
RETRY_MAX_S = 10.0
AGAIN_S = 10.0  # between two checks, each of one small request


@prepared
class StoreIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """store.json. `url` is for people: a store that is moved, or mounted elsewhere, keeps its id."""

    format: tuple[int, int] = FORMAT
    url: str
    cluster_id: str
    store_id: str

    def __post_init__(self) -> None:
        Owner(cluster_id=self.cluster_id, store_id=self.store_id)  # checks the same rules


def read_identity(data_dir: Path) -> StoreIdentity | None:
    """The data directory's store; None when it has not archived yet. Raises CorruptData, which says what to do, and UnsupportedFormat."""
    path = data_dir / NAME
    with disk_errors(path):
        try:
            raw = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
    try:
        return unseal(raw, StoreIdentity, str(path))
    except CorruptData as error:
        advice = "if the configured store is the archive of this data directory, remove the file, and it is written again"
        raise CorruptData(error.where, error.position, f"{error.reason}; {advice}") from error


def check_known(known: StoreIdentity | None, owner: Owner | None, url: str, data_dir: Path) -> None:
    """Raises WrongStore or StoreGone unless the store is the `known` one."""
    if known is None:
        return
    if owner is None:
        if url != known.url:
            raise _wrong(known, url, data_dir)
        raise StoreGone(
            f"{url} was an archive, but has no headwater.json now: mount it, or restore the bucket. If the store was emptied on purpose, "
            f"remove {data_dir / NAME} and {data_dir / 'control'} to start a new archive"
        )
    if (owner.store_id or known.store_id) != known.store_id or (owner.store_id is None and url != known.url):
        raise _wrong(known, url, data_dir)


def _wrong(known: StoreIdentity, url: str, data_dir: Path) -> WrongStore:
    if url == known.url:
        return WrongStore(
            f"{url} is not the archive that {data_dir} has written to: another archive is in its place. Mount or restore the right one, "
            "or use another data directory (--data-dir)"
        )
    return WrongStore(
        f"the data directory {data_dir} belongs to {known.url}, not to {url}: use another data directory (--data-dir), or {known.url} as "
        "the store"
    )


def decide_owner(
    known: StoreIdentity | None, owner: Owner | None, *, url: str, data_dir: Path, cluster_id: str, fresh_id: str
) -> Owner | None:
    """The headwater.json to write, or None when it is right. Raises WrongStore, StoreGone and ForeignOwner when nothing may be written.

    fresh_id  the id for a store that has none yet
    """
    check_known(known, owner, url, data_dir)
    if owner is not None and owner.cluster_id != cluster_id:
        raise foreign_bucket(url, owner, cluster_id)
    if owner is not None and owner.store_id is not None:
        return None
    return Owner(cluster_id=cluster_id, store_id=known.store_id if known else fresh_id)


def settle(
    manifests: ManifestRepository,
    *,
    url: str,
    data_dir: Path,
    cluster_id: str,
    fresh_id: str,
    remembered: bool,
    before_writing: Callable[[], object],
) -> None:
    """Make both documents agree. Agents that do this at the same time agree on one id. Raises what decide_owner does.

    remembered      the data directory knows of archived partitions, even without a store.json, as before format 1.1
    before_writing  called when the store may be used, before the first write to it
    """
    known = read_identity(data_dir)

    def decide(owner: Owner | None) -> Owner | None:
        if known is None and owner is None and remembered:
            raise StoreGone(
                f"{url} has no headwater.json, though {data_dir} knows of archived partitions: mount the archive, restore the bucket, or "
                f"use another --data-dir. If the store was emptied on purpose, remove {data_dir / 'control'} to start a new archive"
            )
        return decide_owner(known, owner, url=url, data_dir=data_dir, cluster_id=cluster_id, fresh_id=fresh_id)

    decide(_owner(manifests))
    before_writing()
    owner = manifests.settle_owner(decide)
    assert owner.store_id is not None
    settled = StoreIdentity(url=url, cluster_id=owner.cluster_id, store_id=owner.store_id)
    if settled != known:
        try:
            replace_file(data_dir / NAME, seal(settled))
        except DiskFull as error:
            raise DataDirFull(str(error)) from error


def check_belongs(manifests: ManifestRepository, *, url: str, data_dir: Path, to_write: bool = False) -> Owner | None:
    """The owner of the archive; None while the data directory belongs to no store. Writes nothing.

    to_write  what agents of its owner obey: refused to a cluster that the archive was taken over from

    Raises WrongStore and StoreGone, as `settle` does, ForeignOwner, and what the store raises.
    """
    known = read_identity(data_dir)
    if known is None:
        return None
    owner = _owner(manifests)
    check_known(known, owner, url, data_dir)
    if to_write and owner is not None and known.cluster_id in owner.former:
        raise foreign_bucket(url, owner, known.cluster_id)
    return owner


def _owner(manifests: ManifestRepository) -> Owner | None:
    try:
        return manifests.owner()
    except StoreGone:
        return None  # its directory is missing: the same as an empty store


class Gate:
    """Lets calls pass once `check` has succeeded. Until then each call raises the check's error; the check is retried after RETRY_S.

    again   called every AGAIN_S after that; StoreGone and WrongStore close the gate. A disk may be unmounted, or another one mounted
            in its place, at any time
    opened  called when the check succeeds after a failure
    """

    def __init__(
        self,
        check: Callable[[], None],
        clock: Clock,
        *,
        again: Callable[[], object] = lambda: None,
        opened: Callable[[], object] = lambda: None,
    ) -> None:
        self._check, self._clock, self._again, self._opened = check, clock, again, opened
        self._lock = threading.Lock()
        self._passed = threading.Event()
        self._failure: HeadwaterError | None = None
        self._due_at_s, self._retry_s = float("-inf"), RETRY_S  # of the next check; the pause after it, should it fail

    @contextmanager
    def passing(self) -> Iterator[None]:
        self.open()
        yield

    def open(self) -> None:
        if self._passed.is_set() and self._is_still_right():
            return
        with self._lock:
            if self._passed.is_set():
                return
            if self._failure is not None and self._clock.monotonic_s() < self._due_at_s:
                raise self._failure
            try:
                self._check()
            except HeadwaterError as error:
                self._failure, self._due_at_s = error, self._clock.monotonic_s() + self._retry_s
                self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
                raise
            self._due_at_s, self._retry_s = self._clock.monotonic_s() + AGAIN_S, RETRY_S
            self._passed.set()
            failed_before, self._failure = self._failure is not None, None
            if failed_before:
                self._opened()

    def _is_still_right(self) -> bool:
        """As far as is known; one caller at a time asks, when it is due."""
        if self._clock.monotonic_s() < self._due_at_s or not self._lock.acquire(blocking=False):
            return True
        try:
            self._due_at_s = self._clock.monotonic_s() + AGAIN_S
            self._again()
        except (StoreGone, WrongStore) as error:
            self._failure, self._due_at_s = error, float("-inf")
            self._passed.clear()
            return False
        except HeadwaterError:
            pass  # of a store that cannot be asked now; the call itself will say so
        finally:
            self._lock.release()
        return True
