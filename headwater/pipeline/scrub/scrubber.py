"""Re-reads an archive against its manifests. The check of `headwater verify`, `headwater jobs scrub`, and of both on Spark.

Nothing healthy is told: what is gone or different counts only while a head, read after that, still lists it; what no head
lists only when it is older than an upload can be.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from headwater.pipeline.runner import Runner, Threads
from headwater.pipeline.scrub.findings import Finding
from headwater.pipeline.scrub.head_check import Check, swaps
from headwater.pipeline.scrub.inventory import Inventory, Look, Place, look, take_inventory
from headwater.pipeline.scrub.object_check import CheckedObject, check_object
from headwater.pipeline.scrub.scrub_state import MILESTONES as SEEN_STEPS
from headwater.pipeline.scrub.scrub_state import ScrubState
from headwater_core import milestones
from headwater_core.clock import Clock
from headwater_core.errors import HeadwaterError, NothingExamined, Partial, UsageError, VerificationFailed
from headwater_core.objectstore.digest import Digest
from headwater_core.objectstore.store import ObjectStore

MILESTONES = ("scrub.examined", *SEEN_STEPS)
GRACE_MS = 24 * 3600 * 1000
_DAY_MS = 24 * 3600 * 1000
_LOOKERS = 8  # heads and listings under way: they wait for the store
_SAVE_EVERY_S = 30.0
_PERIOD_MAX = 10_000
_PACK_BYTES = 32 << 20  # of one task
_PACK_OBJECTS = 16


@dataclass(frozen=True, slots=True)
class Sample:
    """One of `period` shares of the objects: another one every day, all of them within `period` days of daily runs."""

    slot: int
    period: int

    @classmethod
    def of_day(cls, fraction: float, now_ms: int) -> "Sample":
        """The day's share: at least `fraction` of the objects. Raises UsageError unless it is above 0 and at most 1."""
        if not 1 / _PERIOD_MAX <= fraction <= 1:
            raise UsageError(f"a sample of {fraction:.6%}: at least {1 / _PERIOD_MAX:.2%}, at most 100%")
        period = int(1 / fraction + 1e-9)
        return cls(now_ms // _DAY_MS % period, period)

    def __contains__(self, uid: str) -> bool:
        digest = Digest()
        digest.update(uid.encode())
        return digest.value % self.period == self.slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What a scrub is asked for.

    data      read every byte; else lengths, stored digests and indexes
    sample    read only these, and what has not been seen; None: all
    grace_ms  how old an object that no head lists must be to be told
    """

    topic: str | None = None
    partition: int | None = None
    data: bool = True
    sample: Sample | None = None
    grace_ms: int = GRACE_MS


@dataclass(slots=True, kw_only=True)
class Report:
    """What a scrub came to.

    skipped   objects that were not due: seen before, or in another day's sample
    replaced  objects that their head left behind meanwhile
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

    def verdict(self, url: str) -> HeadwaterError | None:
        """What to end with; None when all is well."""
        if self.damaged:
            return VerificationFailed(f"{self.damaged} of what was examined is damaged, or should not be there")
        if self.findings:
            return Partial(f"{len(self.findings)} could not be examined")
        if not self.examined and not self.skipped:
            return NothingExamined(f"there is nothing to examine in {url}")
        return None


class Scrubber:
    """One scrub of one store. Making it lists the bucket and reads its small documents; then `run`, or `due` to see what it would do.

    clock  should agree with the one that stamps the store's objects, to within the grace period
    state  what earlier runs have found whole; None: nothing is remembered

    Raises NotFound for a topic or partition that the bucket does not know, and what keeps the store from answering.
    """

    def __init__(self, store: ObjectStore, scope: Scope, clock: Clock, state: ScrubState | None = None) -> None:
        self._store, self._scope, self._clock = store, scope, clock
        self._before_ms = clock.now_ms() - scope.grace_ms
        self._state = state
        self.report = Report()
        self._inventory = take_inventory(store, scope.topic, scope.partition, before_ms=self._before_ms)
        self.report.findings += self._inventory.findings

    @property
    def size_bytes(self) -> int:
        """Of all objects, those included that are not due."""
        return self._inventory.size_bytes

    def due(self, passed: Callable[[int], None] = lambda _: None) -> Iterator[Check]:
        """What is to be examined, partition by partition; what heads and listings alone show goes into the report.

        passed  told of the bytes of what is not due
        """
        for each in self._looks():
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
        """Examine everything that is due. Killed at any point and run again, it ends like an undisturbed run.

        progressed  told of bytes as they are done, of about `size_bytes` in all
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

    def _looks(self) -> Iterator[Look]:
        work = partial(_look, inventory=self._inventory, before_ms=self._before_ms)
        return Threads(self._store, _LOOKERS).each(work, self._inventory.places)

    def _is_due(self, place: Place, check: Check) -> bool:
        """What is not there, or has another length, is due whatever was asked for: the listing tells it for nothing."""
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
        """Whose content it is that lies under a wrong key: asked of all heads once more, and only when there is such a thing."""
        wanted = {each.found_digest for each in self.report.findings} - {""}
        if not wanted:
            return
        owners = {}
        for each in self._looks():
            for entry in (check.entry for check in each.checks):
                for digest, key in ((entry.digest, entry.key), (entry.index_digest, entry.index_key)):
                    if digest in wanted:
                        owners[digest] = key
        self.report.findings = swaps(self.report.findings, owners)


def _examine_all(store: ObjectStore, checks: Sequence[Check], *, data: bool) -> list[CheckedObject]:
    return [check_object(store, check, data=data) for check in checks]


def _look(store: ObjectStore, place: Place, *, inventory: Inventory, before_ms: int) -> Look:
    return look(store, place, inventory, before_ms=before_ms)


def _packs(checks: Iterable[Check]) -> Iterator[list[Check]]:
    """Small objects share a task."""
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
