"""Compares an archive with its manifests: the check of `headwater verify` and `headwater jobs scrub`, also on Spark.

No false alarms: a missing or different object counts only if a head that is read afterwards still lists it, and an orphan only if
it is older than any upload.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from headwater.pipeline.runner import Runner, Threads
from headwater.pipeline.scrub.findings import Finding, Kind
from headwater.pipeline.scrub.head_check import Check, swaps
from headwater.pipeline.scrub.inventory import Inventory, PartitionInventory, Place, take_inventory, take_partition_inventory
from headwater.pipeline.scrub.object_check import CheckedObject, check_object
from headwater.pipeline.scrub.scrub_state import MILESTONES as SEEN_STEPS
from headwater.pipeline.scrub.scrub_state import ScrubState
from headwater.pipeline.scrub.unlisted_segments import look_at_segment
from headwater_core import milestones
from headwater_core.clock import Clock
from headwater_core.counts import count_text
from headwater_core.errors import HeadwaterError, NothingExamined, Partial, UsageError, VerificationFailed
from headwater_core.objectstore.digest import Digest
from headwater_core.objectstore.store import ObjectStore

MILESTONES = ("scrub.examined", *SEEN_STEPS)
GRACE_MS = 24 * 3600 * 1000
_DAY_MS = 24 * 3600 * 1000
_LISTERS = 8  # heads and listings in flight: they wait for the store
_SAVE_EVERY_S = 30.0
_PERIOD_MAX = 10_000
_PACK_BYTES = 32 << 20  # of one task
_PACK_OBJECTS = 16


@dataclass(frozen=True, slots=True)
class Sample:
    """One of `period` shares of the objects: another one every day, all objects within `period` days of daily runs."""

    slot: int
    period: int

    @classmethod
    def of_day(cls, fraction: float, now_ms: int) -> "Sample":
        """The day's share: at least `fraction` of the objects, in (0, 1]. Raises UsageError for another fraction."""
        if not 1 / _PERIOD_MAX <= fraction <= 1:
            raise UsageError(f"a sample of {fraction:.6%} is not between {1 / _PERIOD_MAX:.2%} and 100%")
        period = int(1 / fraction + 1e-9)
        return cls(now_ms // _DAY_MS % period, period)

    def __contains__(self, uid: str) -> bool:
        digest = Digest()
        digest.update(uid.encode())
        return digest.value % self.period == self.slot


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubScope:
    """What a scrub examines.

    data      read every byte; else lengths, stored digests and indexes
    sample    read only these, and objects that no earlier run has read; None: all
    grace_ms  age from which an orphan is reported
    """

    topic: str | None = None
    partition: int | None = None
    data: bool = True
    sample: Sample | None = None
    grace_ms: int = GRACE_MS


@dataclass(slots=True, kw_only=True)
class Report:
    """The result of a scrub.

    skipped   objects that were not due: read before, or in another day's sample
    replaced  objects that their head replaced meanwhile
    """

    findings: list[Finding] = field(default_factory=list)
    partitions: int = 0
    examined: int = 0
    skipped: int = 0
    replaced: int = 0
    read_bytes: int = 0

    @property
    def damaged(self) -> int:
        return sum(each.damage for each in self.findings)

    def sums(self, sample: Sample | None = None) -> dict[str, int]:
        """What an operation shows of it: damaged, missing and extra (listed by no head) are disjoint; unexamined is no damage. Of a
        `sample` its share, too."""
        kinds = Counter(each.kind for each in self.findings)
        apart = {"missing": kinds[Kind.MISSING], "extra": kinds[Kind.EXTRA], "unexamined": kinds[Kind.UNEXAMINED]}
        return {
            "partitions": self.partitions,
            "examined": self.examined,
            "damaged": len(self.findings) - sum(apart.values()),
            **apart,
            "skipped": self.skipped,
            "read_bytes": self.read_bytes,
            **({"share": sample.slot, "shares": sample.period} if sample else {}),
        }

    def verdict(self, url: str) -> HeadwaterError | None:
        """The error to end with; None when there is no finding."""
        if self.damaged:
            return VerificationFailed(
                f"{count_text(self.damaged, 'problem')} found (damaged, missing or unexpected object); see docs/runbook.md"
            )
        if self.findings:
            return Partial(f"{len(self.findings)} of the objects and documents could not be examined")
        if not self.examined and not self.skipped:
            return NothingExamined(f"there is nothing to examine in {url}")
        return None


class Scrubber:
    """One scrub of one store. The constructor lists the bucket and reads its small documents; then call `run`, or `due` for a dry run.

    clock  should agree with the clock of the store, to within the grace period
    state  the objects that earlier runs found undamaged; None: nothing is remembered

    Raises NotFound for a topic or partition that is not in the bucket, and what the store raises.
    """

    def __init__(self, store: ObjectStore, scope: ScrubScope, clock: Clock, state: ScrubState | None = None) -> None:
        self._store, self._scope, self._clock = store, scope, clock
        self._before_ms = clock.now_ms() - scope.grace_ms
        self._state = state
        self.report = Report()
        self._inventory = take_inventory(store, scope.topic, scope.partition, before_ms=self._before_ms)
        self.report.findings += self._inventory.findings
        self.report.findings += Threads(store, _LISTERS).each(look_at_segment, self._inventory.unlisted)

    @property
    def size_bytes(self) -> int:
        """Of all objects, including those that are not due."""
        return self._inventory.size_bytes

    def due(self, passed: Callable[[int], None] = lambda _: None) -> Iterator[Check]:
        """The objects to examine, partition by partition. Findings of heads and listings go into the report.

        passed  called with the bytes of each object that is not due
        """
        for each in self._partitions():
            self.report.findings += each.findings
            self.report.partitions += each.has_head
            if each.has_head and self._state:
                self._state.keep(_name(each.place), (check.token for check in each.checks))
            for check in each.checks:
                if self._is_due(each.place, check):
                    yield check
                else:
                    self.report.skipped += 1
                    passed(_size(check))

    def run(self, runner: Runner, progressed: Callable[[int], None] = lambda _: None) -> Report:
        """Examine everything that is due. After a kill at any point, another run has the result of an undisturbed one.

        progressed  called with bytes that are done, of about `size_bytes` in all
        """
        work = partial(_examine_all, data=self._scope.data)
        saved_s = self._clock.monotonic_s()
        for examined in chain.from_iterable(runner.each(work, _packs(self.due(progressed)))):
            self._count(examined)
            progressed(_size(examined.check))
            milestones.reached("scrub.examined")
            if self._state and self._clock.monotonic_s() - saved_s >= _SAVE_EVERY_S:
                self._state.save()
                saved_s = self._clock.monotonic_s()
        if self._state:
            self._state.save()
        self._name_swaps()
        self.report.findings.sort(key=lambda each: (each.topic, -1 if each.partition is None else each.partition, each.key, each.kind))
        return self.report

    def _partitions(self) -> Iterator[PartitionInventory]:
        work = partial(_take_partition_inventory, inventory=self._inventory, before_ms=self._before_ms)
        return Threads(self._store, _LISTERS).each(work, self._inventory.places)

    def _is_due(self, place: Place, check: Check) -> bool:
        """A missing object, or one of another length, is always due: the listing shows it without a request."""
        if not check.is_as_listed:
            return True
        sample, state = self._scope.sample, self._state
        if sample is not None and check.entry.uid in sample:
            return True
        return not state.has(_name(place), check.token) if state else sample is None

    def _count(self, examined: CheckedObject) -> None:
        self.report.examined += 1
        self.report.replaced += examined.is_replaced
        self.report.read_bytes += examined.size_bytes
        self.report.findings += examined.findings
        if self._state and not examined.is_replaced:
            partition = examined.check.partition
            name = f"{partition.topic_id}:{partition.partition}"
            (self._state.discard if examined.findings else self._state.add)(name, examined.check.token)

    def _name_swaps(self) -> None:
        """Find the keys of content that is under a wrong key. Reads all heads again, if there is such content."""
        wanted = {each.found_digest for each in self.report.findings} - {""}
        if not wanted:
            return
        owners = {}
        for each in self._partitions():
            for entry in (check.entry for check in each.checks):
                for digest, key in ((entry.digest, entry.key), (entry.index_digest, entry.index_key)):
                    if digest in wanted:
                        owners[digest] = key
        self.report.findings = swaps(self.report.findings, owners)


def _examine_all(store: ObjectStore, checks: Sequence[Check], *, data: bool) -> list[CheckedObject]:
    return [check_object(store, check, data=data) for check in checks]


def _take_partition_inventory(store: ObjectStore, place: Place, *, inventory: Inventory, before_ms: int) -> PartitionInventory:
    return take_partition_inventory(store, place, inventory, before_ms=before_ms)


def _packs(checks: Iterable[Check]) -> Iterator[list[Check]]:
    """Tasks, in which small objects are joined."""
    pack: list[Check] = []
    for check in checks:
        pack.append(check)
        if len(pack) == _PACK_OBJECTS or sum(map(_size, pack)) >= _PACK_BYTES:
            yield pack
            pack = []
    if pack:
        yield pack


def _size(check: Check) -> int:
    return check.entry.size_bytes + check.entry.index_bytes


def _name(place: Place) -> str:
    return f"{place.topic_id}:{place.partition}"
