"""cluster/latest.json: which snapshots of the cluster's metadata are kept, the newest last (docs/formats/cluster-snapshot.md).

Values in, values out; the repository does the compare-and-swap.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from headwater_core.partition import check_cluster_id
from manifests import keys
from manifests.document import FORMAT, prepared, seal, unseal

SNAPSHOT_BYTES_MAX = 64 << 20  # of one in the bucket
LISTED_MAX = 10_000
LEASE_MS = 3600 * 1000  # what is not listed any more is deleted after so long: readers may have begun with the list before
ANOTHER_LIFE_MS = 600 * 1000
_HOUR_MS = 3600 * 1000
_DAY_MS = 24 * _HOUR_MS
_ALL_MS, _HOURLY_MS = 2 * _HOUR_MS, 3 * _DAY_MS  # so long every one is kept, then one an hour, then one a day
_TIME_MS_MAX = 253_402_300_799_000  # the end of the year 9999
_WRITER_CHARS_MAX = 200
_DIGEST = re.compile(r"crc64nvme:[0-9a-f]{16}")
_CONTENT = re.compile(r"[0-9a-f]{64}")


class ListedSnapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of them.

    number      rises
    end_offset, end_epoch  the metadata log is in it up to this offset, exclusive; the epoch of the last record
    appended_ms  when the controller wrote that one; 0: not known
    taken_ms    when the state was found, by the clock of the agent; never before the snapshot before
    digest      of the object; None where the list was lost and made again from the objects' names
    content, open_content  SHA-256 of the records in it, and of those that are not secret: two states are the same when these are
    has_secrets  nothing was left out; None where that is not known, as the list was lost
    unknown     how many records its writer did not know
    """

    number: int
    end_offset: int
    end_epoch: int
    uid: str
    taken_ms: int
    writer: str = ""
    size_bytes: int
    appended_ms: int = 0
    digest: str | None = None
    content: str | None = None
    open_content: str | None = None
    has_secrets: bool | None = True
    unknown: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.number < 10**10 or not 0 <= self.end_offset < 2**63 or not 0 <= self.end_epoch < 2**31:
            raise ValueError(f"impossible snapshot {self.number} of {self.end_offset}, {self.end_epoch}")
        if not keys.is_uid(self.uid) or len(self.writer) > _WRITER_CHARS_MAX or not 0 <= self.size_bytes <= SNAPSHOT_BYTES_MAX:
            raise ValueError(f"impossible snapshot {self.number}: {self.uid[:40]!r}, {self.size_bytes} bytes")
        if not 0 <= self.taken_ms <= _TIME_MS_MAX or not 0 <= self.appended_ms <= _TIME_MS_MAX or self.unknown < 0:
            raise ValueError(f"impossible times of snapshot {self.number}")
        if self.digest is not None and not _DIGEST.fullmatch(self.digest):
            raise ValueError(f"no digest: {self.digest[:40]!r}")
        if any(each is not None and not _CONTENT.fullmatch(each) for each in (self.content, self.open_content)):
            raise ValueError(f"snapshot {self.number} has no SHA-256")

    @property
    def name(self) -> keys.SnapshotName:
        return keys.SnapshotName(self.number, self.end_offset, self.end_epoch, self.uid)

    @property
    def key(self) -> str:
        return keys.cluster_snapshot(self.name)

    @property
    def position(self) -> tuple[int, int]:
        """(epoch, offset): of two logs the one with the greater is newer, as a quorum elects."""
        return self.end_epoch, self.end_offset


class DroppedSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """It was listed until `dropped_ms`."""

    number: int
    uid: str
    dropped_ms: int


@prepared
class ClusterList(msgspec.Struct, frozen=True, kw_only=True):
    """snapshots: in order of their numbers, the newest last; there is one at least"""

    format: tuple[int, int] = FORMAT
    cluster_id: str
    snapshots: tuple[ListedSnapshot, ...]
    dropped: tuple[DroppedSnapshot, ...] = ()

    def __post_init__(self) -> None:
        check_cluster_id(self.cluster_id)
        if not 1 <= len(self.snapshots) <= LISTED_MAX or len(self.dropped) > LISTED_MAX:
            raise ValueError(f"{len(self.snapshots)} snapshots, {len(self.dropped)} dropped ones")
        for before, after in zip(self.snapshots, self.snapshots[1:], strict=False):
            if before.number >= after.number or before.taken_ms > after.taken_ms:
                raise ValueError(f"snapshots {before.number} and {after.number} are out of order")

    @property
    def newest(self) -> ListedSnapshot:
        return self.snapshots[-1]

    def at(self, time_ms: int) -> ListedSnapshot | None:
        """The one that held at that time; None for a time before the first."""
        found = [each for each in self.snapshots if each.taken_ms <= time_ms]
        return found[-1] if found else None

    def refers_to(self, name: keys.SnapshotName) -> bool:
        return any((each.number, each.uid) == (name.number, name.uid) for each in self.snapshots)

    def followed_by(self, snapshot: ListedSnapshot, *, now_ms: int) -> "ClusterList":
        """With another one."""
        return self._listing((*self.snapshots, snapshot)[-LISTED_MAX:], now_ms)

    def only(self, names: Collection[keys.SnapshotName], *, now_ms: int) -> "ClusterList":
        """Without all others, but for the newest."""
        return self._listing(tuple(each for each in self.snapshots if each.name in names or each is self.newest), now_ms)

    def _listing(self, snapshots: tuple[ListedSnapshot, ...], now_ms: int) -> "ClusterList":
        kept = {each.name for each in snapshots}
        gone = [DroppedSnapshot(number=each.number, uid=each.uid, dropped_ms=now_ms) for each in self.snapshots if each.name not in kept]
        still = [each for each in self.dropped if now_ms - each.dropped_ms < LEASE_MS]
        return replace(self, format=FORMAT, snapshots=snapshots, dropped=(*still, *gone)[-LISTED_MAX:])


def kept_snapshots(
    snapshots: Sequence[ListedSnapshot], ages_ms: Mapping[keys.SnapshotName, int], *, retention_ms: int | None
) -> tuple[ListedSnapshot, ...]:
    """Of those of the last two hours each, of the last three days the last of each hour, then the last of each day; of those older
    than `retention_ms` the newest, which held when that time began. The newest of all stays.

    ages_ms  of those whose age is known; all others stay
    """
    last_of: dict[_Period, ListedSnapshot] = {}
    for each in snapshots:
        last_of[_period(each, ages_ms.get(each.name, 0), retention_ms)] = each
    return tuple(sorted(last_of.values(), key=lambda each: each.number))


class _Period(NamedTuple):
    """A kind of period, and which one."""

    kind: int
    which: int


def _period(snapshot: ListedSnapshot, age_ms: int, retention_ms: int | None) -> _Period:
    if retention_ms is not None and age_ms > retention_ms:
        return _Period(0, 0)
    if age_ms > _HOURLY_MS:
        return _Period(1, snapshot.taken_ms // _DAY_MS)
    if age_ms > _ALL_MS:
        return _Period(2, snapshot.taken_ms // _HOUR_MS)
    return _Period(3, snapshot.number)


def is_newer(position: tuple[int, int], appended_ms: int, listed: ListedSnapshot) -> bool:
    """Is a metadata log that ends there newer than the one of `listed`? So it is, too, when it was written to much later: then it is
    another log under the same cluster id, which a recovery has begun. A log whose last record is as much older is the one before that,
    wherever it ends. A follower that is late has older records."""
    believed_ms = min(listed.appended_ms, listed.taken_ms)  # a controller's clock may have been ahead
    if position > listed.position:
        return not 0 < appended_ms < believed_ms - ANOTHER_LIFE_MS
    return position < listed.position and 0 < listed.appended_ms < appended_ms - ANOTHER_LIFE_MS


def adopted(cluster_id: str, objects: Iterable[tuple[keys.SnapshotName, int, int]]) -> ClusterList | None:
    """A list made again from (name, size in bytes, when it was written) of the objects that are there, its own being lost; None: there
    are none."""
    by_number: dict[int, ListedSnapshot] = {}
    latest_ms = 0
    for name, size_bytes, modified_ms in sorted(objects):
        if name.number < 1 or size_bytes > SNAPSHOT_BYTES_MAX:
            continue
        latest_ms = max(latest_ms, min(max(0, modified_ms), _TIME_MS_MAX))
        by_number[name.number] = ListedSnapshot(
            number=name.number,
            end_offset=name.end_offset,
            end_epoch=name.end_epoch,
            uid=name.uid,
            taken_ms=latest_ms,
            size_bytes=size_bytes,
            has_secrets=None,
        )
    found = tuple(by_number[number] for number in sorted(by_number))[-LISTED_MAX:]
    return ClusterList(cluster_id=cluster_id, snapshots=found) if found else None


def encode_cluster_list(listed: ClusterList) -> bytes:
    return seal(listed)


def decode_cluster_list(raw: bytes) -> ClusterList:
    """Raises CorruptData, and UnsupportedFormat for another major version."""
    return unseal(raw, ClusterList, keys.CLUSTER_LIST)
