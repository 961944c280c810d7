"""Recoveries of every kind from one small archive, each of which can be ended at any of its named steps and is then run again.

What a run makes up and what it reads of clocks is passed in, and differs from run to run: what an interrupted recovery leaves when it is
finished is what an undisturbed one leaves, to the last byte, so the later run must have taken over what the first one decided.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec

import recovery
from archival.cluster_archiver import ClusterArchiver, ClusterArchiverEquipment
from headwater_core import milestones
from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.metadata.metadata_log import DIRECTORY, MetadataLog
from manifests import keys
from manifests.document import unseal
from manifests.repository import ManifestRepository
from recovery import take_over
from recovery.recovery_plan import RecoveryPlan
from recovery.replica_placement import numbered_brokers
from recovery.target import LOCK, MARK, read_mark
from recovery.target_record import TargetRecord
from recovery.topic_creation import with_created_topics
from tests.fixtures import unpack
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.recovery.full_disk import Killed
from tests.recovery.plans import CLUSTER
from tests.recovery.running import Running
from tests.recovery.written_archive import Archive, commit, data, plain

VARIANTS: dict[str, dict[str, Any]] = {
    "topics": {},
    "partial": {"cluster": "latest", "mode": "partial", "keep_bytes": 1},
    "instant": {"cluster": "latest", "mode": "instant"},
    "cluster": {"cluster": "latest"},
    "brokers": {"cluster": "latest", "brokers": numbered_brokers(2, 1)},
    "take-over": {"cluster": "latest", "brokers": numbered_brokers(2, 1), "take_over": True},
    "running": {"cluster": "latest", "running": True},
}
"""By name, the options of a recovery of everything. Modes are those of the whole cluster: topics alone pass the same steps with less."""


def steps_of(variant: str) -> list[str]:
    """Every named step that it passes, in order."""
    options, steps = VARIANTS[variant], list(recovery.MILESTONES)
    if options.get("take_over"):
        at = steps.index("recover.claimed") + 1
        steps[at:at] = take_over.MILESTONES
    if options.get("running"):
        steps.insert(steps.index("recover.locked") + 1, "recover.created")
    return steps


class Seed(NamedTuple):
    """What a run does not have from the bucket, the plan or the directory."""

    directory_id: str
    at_ms: int


FIRST, LATER = Seed("AAAAAAAAAAAAAAAAAAAAAQ", 1_700_000_000_000), Seed("BBBBBBBBBBBBBBBBBBBBBQ", 1_700_000_060_000)
UNDECIDED = ("recover.locked", "recover.created")
"""The id of the directory and the time are decided after them: the next run is the first."""


def applied(plan: RecoveryPlan, into: Path, store: ObjectStore, seed: Seed, **how: Any) -> recovery.RecoveryReport:
    """`recovery.apply` with what `seed` has."""
    return recovery.apply(plan, into, store, clock=ManualClock(seed.at_ms), new_id=lambda: seed.directory_id, **how)


def an_archive() -> Archive:
    """With what recovery writes itself: the marker of an open transaction, and a committed offset that is set back; and a snapshot."""
    archive = Archive()
    archive.topic("orders", [plain(0), plain(1)], [data(2, 7)], **{"retention.ms": "600"})
    archive.topic("__consumer_offsets", [commit(0, ("reader", "orders", 0, 9))], **{"cleanup.policy": "compact"})
    found = MetadataLog(unpack("kitchen") / DIRECTORY).read()
    one = replace(found.topics["menu"], partitions={0: found.topics["menu"].partitions[0]})
    policies = {"orders": "delete", "__consumer_offsets": "compact"}
    topics = {
        name: replace(one, name=name, topic_id=archive.ids[name], configs={"cleanup.policy": each}) for name, each in policies.items()
    }
    equipment = ClusterArchiverEquipment(
        metadata=lambda: replace(found, topics=topics),
        store=archive.store,
        repository=ManifestRepository(archive.store),
        cluster_id=lambda: CLUSTER,
        writer="cook",
        clock=ManualClock(),
        new_uid=lambda: "a" * 32,
    )
    ClusterArchiver(equipment).step()
    return archive


@dataclass
class Walk:
    """One plan, and a copy of its bucket and a running cluster for each time that it is applied."""

    plan: RecoveryPlan
    bucket: dict[str, bytes]
    root: Path
    clusters: dict[str, Running] = field(default_factory=dict)
    stores: dict[str, MemoryStore] = field(default_factory=dict)

    @classmethod
    def of(cls, variant: str, root: Path) -> "Walk":
        store = an_archive().store
        options = recovery.Options(**VARIANTS[variant])
        plan = recovery.plan(ManifestRepository(store), None, options, running=Running() if options.running else None)
        return cls(plan, {info.key: store.get(info.key)[0] for info in store.list("")}, root)

    def apply(self, name: str, seed: Seed, **how: Any) -> recovery.RecoveryReport:
        """Into the directory of that name, again where it was before."""
        cluster, store = self.clusters.setdefault(name, Running()), self.stores.get(name)
        if store is None:
            store = self.stores[name] = MemoryStore(ManualClock())
            for key, content in self.bucket.items():
                store.create(key, content)
        create = partial(with_created_topics, cluster=cluster)
        return applied(self.plan, self.into(name), store, seed, workers=1, create=create, host="one", **how)

    def into(self, name: str) -> Path:
        return self.root / name / "log"

    def left(self, name: str) -> dict[str, object]:
        """What there is in the end: every file, every object of the bucket, and the running cluster."""
        found: dict[str, object] = {f"log/{path}": content for path, content in contents(self.into(name)).items()}
        found |= {f"bucket/{key}": content for key, content in documents(self.stores[name]).items()}
        return found | {"cluster": self.clusters[name]}


def contents(into: Path) -> dict[str, object]:
    """Every file by its name. Of the mark all that it says but when the recovery was finished, which is when its last run ended."""
    found: dict[str, object] = {str(path.relative_to(into)): path.read_bytes() for path in into.rglob("*") if path.is_file()}
    mark = read_mark(into)
    assert mark is not None
    assert mark.finished_ms is not None
    assert found.pop(LOCK) == b""
    return found | {MARK: replace(mark, finished_ms=0)}


def documents(store: ObjectStore) -> dict[str, object]:
    """Every object by its key. Of a head all but the name of its commit, of which there is never a second; of the record of the recovery
    all but where the directory lies, which is another one than that of the undisturbed run, and when it was verified, by its last run."""
    found: dict[str, object] = {}
    for info in store.list(""):
        raw: object = store.get(info.key)[0]
        if info.key.endswith("/manifest.json"):
            raw = msgspec.structs.replace(ManifestRepository(store).load_unchecked(info.key), commit_id="any")
        elif info.key.startswith(keys.RECOVERIES):
            record = unseal(store.get(info.key)[0], TargetRecord, info.key)
            raw = msgspec.structs.replace(record, directory="any", verified_ms=None if record.verified_ms is None else 0)
        found[info.key] = raw
    return found


@contextmanager
def killed_at(step: str) -> Iterator[None]:
    """What is done meanwhile ends at the milestone `step`, NAME or NAME:TIMES."""
    name, _, times = step.partition(":")
    left = int(times or 1)

    def kill(at: str) -> None:
        nonlocal left
        left -= at == name
        if left == 0 and at == name:
            raise Killed

    with patch.object(milestones, "observer", kill):
        yield


def is_killed(step: str, work: Callable[[], object]) -> bool:
    """Did `work` come to `step`, and end there?"""
    with killed_at(step):
        try:
            work()
        except Killed:
            return True
    return False
