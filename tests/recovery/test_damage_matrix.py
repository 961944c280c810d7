"""Buckets that are damaged in one way, or in several at once: each damage is named, nothing wrong is written, all that is sound comes back.

Records are compared batch by batch, and what else is written as `recovered_metadata` says. All topics are recovered, half the time as a
whole cluster with its snapshot; each that does not come back that way by itself, and every earlier incarnation by its id. A refusal names
what is damaged, and what it says to do is done. Every fifth bucket is drilled, too: what a drill lets pass is sound.

`DAMAGE_SEEDS=10000` draws more of them (`make soak`).
"""

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import recovery
from headwater.drill.drill_report import DrillOutcome, DrillRequest, decode_report, encode_report
from headwater.drill.drill_run import carry_out, prepare
from headwater.drill.equipment import DrillEquipment
from headwater.drill.metadata_check import NAMES
from headwater.drill.scratch import open_scratch
from headwater_core.clock import SystemClock
from headwater_core.errors import HeadwaterError
from headwater_core.layouts import open_layout
from headwater_core.partition import parse_incarnation
from manifests import page_limits
from manifests.repository import ManifestRepository
from tests.manifests import trees
from tests.recovery.damage_ways import WAYS, damage
from tests.recovery.damaged_bucket import DamagedBucket, where_of
from tests.recovery.hostile_documents import resealed
from tests.recovery.recovered_metadata import NEW_LEVELS, RecoveredMetadata
from tests.recovery.written_archive import batches_in

BLOCKS = 30
DRILL_EVERY = 5  # of so many buckets one is drilled
DRILL_ID = "20260131T120000.123Z-9f86d081"
SEEDS = int(os.environ.get("DAMAGE_SEEDS", "60"))
EACH_WAY = 2 if SEEDS < 1000 else 20  # buckets


class Recovered:
    """What a recovery of `asked`, None for all topics, made of the bucket in `into`; or why it refused to.

    by_id  it is asked for by its id, though its name may mean it
    said   by the plan and in the end
    names  the topics that came back
    """

    def __init__(self, bucket: DamagedBucket, asked: str | None, into: Path, *, by_id: bool = False, **options: object) -> None:
        self.bucket, self.asked, self.into, self.by_id, self.refusal = bucket, asked, into, by_id, ""
        self.names: frozenset[str] = frozenset()
        self.options = recovery.Options(**options)  # type: ignore[arg-type]
        before = {info.key: bucket.store.get(info.key)[0] for info in bucket.store.list("")}
        try:
            named = None if asked is None else [f"{asked}@{bucket.lives[asked].topic_id}" if by_id else asked]
            plan = recovery.plan(ManifestRepository(bucket.store), named, self.options)
            self.said = "\n".join((*plan.left_out, *map(str, plan.holes), *plan.notes, *plan.endings, *plan.problems))
            done = recovery.apply(plan, into, bucket.store, skip_damaged=True, recorded=False)
        except HeadwaterError as error:
            self.said = self.refusal = str(error)
            assert not (into / "meta.properties").exists()
        else:
            self.said += "\n".join((*done.left_out, *done.notes))
            self.names = frozenset(topic.topic for topic in done.topics)
        assert {info.key: bucket.store.get(info.key)[0] for info in bucket.store.list("")} == before

    @property
    def is_cluster(self) -> bool:
        return self.options.cluster is not None

    def check(self) -> None:
        """Of all that came back, whole or not: it is what the archive has."""
        if not self.refusal:
            self._check_logs()
            self._check_metadata()

    def _check_metadata(self) -> None:
        metadata = RecoveredMetadata(self.bucket, self.into, self.said)
        assert metadata.topics.keys() == self.names
        metadata.check_cluster()
        metadata.check_directory()
        for name in sorted(self.names):
            expected = self._expected(name)
            metadata.check_topic(name, None if self._is_dubious(name, expected) else expected)

    def _check_logs(self) -> None:
        """Each is what one incarnation of its name has, and all of it that is sound."""
        found: dict[str, dict[int, list[bytes]]] = {}
        for path in self.into.iterdir():
            name, _, number = path.name.rpartition("-")
            if path.is_dir() and number.isdecimal():
                found.setdefault(name, {})[int(number)] = [raw for _, raw in batches_in(path)]
        for name, logs in found.items():
            assert name in self.names
            self._check_topic(name, {number: batches for number, batches in logs.items() if batches})

    def _check_topic(self, name: str, logs: dict[int, list[bytes]]) -> None:
        bucket = self.bucket
        lives = [self.asked] if self.asked and (self.by_id or "@" in self.asked) else bucket.lives_of(name)
        expected = self._expected(name)
        possible = [label for label in lives if all(self._is_of(label, number, batches) for number, batches in logs.items())]
        assert possible or not logs, f"{name}: of no incarnation, or of several: {logs.keys()}"
        if self._is_dubious(name, expected):
            assert f"{name}:" in self.said or any(self._is_whole(label, logs) for label in possible), name
            return
        assert expected is not None, f"{name} came back, and nobody says which incarnation it is"
        assert not logs or expected in possible, f"{name} came back as another incarnation"
        assert self._is_whole(expected, logs), f"{name}: {self.said}"
        for words in bucket.must_be_said(expected):
            assert words in self.said, f"{words} is not in {self.said}"

    def _expected(self, name: str) -> str | None:
        return self.bucket.comes_back_as(
            self.asked or name, cluster=self.is_cluster, counted=bool(self.options.partition_counts), by_id=self.by_id
        )

    def _is_dubious(self, name: str, expected: str | None) -> bool:
        return bool({name, expected} & self.bucket.dubious) or (self.is_cluster and self.bucket.is_cluster_hostile)

    def _is_of(self, label: str, number: int, batches: list[bytes]) -> bool:
        place = label, number
        return place in self.bucket.logs and set(batches) <= set(self.bucket.everything(place))

    def _is_whole(self, label: str, logs: dict[int, list[bytes]]) -> bool:
        """Everything sound is there; what is doubtful, or it is named."""
        for place in self.bucket.places(label):
            got, wanted = logs.get(place[1], []), self.bucket.sound(place, self.said)
            if got == wanted:
                continue
            is_empty = f"{where_of(place)} comes back empty" in self.said  # of what is on a page, a layout that is not known
            is_named = place in self.bucket.doubtful and where_of(place) in self.said
            if not is_named or not (is_empty or set(got) >= set(self.bucket.certain(place))):
                return False
        return True


def check(bucket: DamagedBucket, seed: int, root: Path) -> None:
    (root := root / str(seed) / "deeper" / "still").mkdir(parents=True)
    if seed % DRILL_EVERY == 0:
        check_drill(bucket, root / "drill", cluster=seed % 2 == 0)
    done = Recovered(bucket, None, root / "all", cluster="latest" if seed % 2 == 0 else None)
    done.check()
    if done.refusal:
        check_explained(bucket, done.refusal, cluster=done.is_cluster)
    else:
        of_snapshots = () if NEW_LEVELS in done.said else bucket.cluster_must_be_said()
        for texts in (*bucket.said, *of_snapshots):
            assert any(each in done.said for each in texts), f"{texts} are not in {done.said}"
        for name in bucket.names.keys() - done.names:
            assert f"{name}:" in done.said, f"{name} is left out, and that is not said"
            label = bucket.comes_back_as(name, cluster=done.is_cluster, counted=False)
            is_left_out = label is None or not is_any_sound(bucket, label)
            is_left_out |= name in bucket.miscounted and f"--partitions {name}=N" in done.said
            assert is_left_out or {name, label} & bucket.dubious or (done.is_cluster and bucket.is_cluster_hostile), (
                f"{name} is left out: {done.said}"
            )
    if seed % 2:
        check_remainder(bucket)
    for number, label in enumerate((*sorted(bucket.names.keys() - done.names), *bucket.earlier)):
        check_alone(bucket, label, root / f"alone-{number}")
    assert {path.name for path in root.parent.iterdir()} == {"still"}
    assert {path.name.partition("-")[0] for path in root.iterdir()} <= {"all", "alone", "drill"}


def check_remainder(bucket: DamagedBucket) -> None:
    """What stays in the archive is looked at, and what is lost of it is named."""
    try:
        plan = recovery.plan(ManifestRepository(bucket.store), None, recovery.Options(mode="instant"), thorough=True)
    except HeadwaterError as error:
        check_explained(bucket, str(error), cluster=False)
        return
    said = "\n".join((*plan.left_out, *plan.notes, *plan.problems))
    for name in bucket.names:
        label = bucket.comes_back_as(name, cluster=False, counted=False)
        if label is None or label in bucket.dubious or name in bucket.dubious:
            continue
        for place in set(bucket.places(label)) - bucket.doubtful - bucket.empty:
            runs = bucket.logs[place].runs[: bucket.listed.get(place, len(bucket.logs[place].runs))]
            gone = [entry for entry, _ in runs if not all(bucket.holds(key) for key, _ in open_layout(entry.layout).data_objects(entry))]
            for entry in gone if not bucket.unlisted & {entry.key for entry, _ in runs} else ():
                assert f"{where_of(place)} offsets {entry.base_offset}-" in said, f"{entry.key} is gone: {said}"


def check_alone(bucket: DamagedBucket, label: str, into: Path) -> None:
    """One topic comes back by itself, as a refusal says that it does."""
    topic = parse_incarnation(label)[0]
    alone = Recovered(bucket, label, into / "1")
    by_id = f"{topic}@TOPIC_ID" in alone.refusal and label in bucket.nameless
    if by_id:
        alone = Recovered(bucket, label, into / "2", by_id=True)
    if "--partitions" in alone.refusal:
        counts = {topic: bucket.lives[bucket.comes_back_as(label, cluster=False, counted=True) or label].partitions}
        alone = Recovered(bucket, label, into / "3", by_id=by_id, partition_counts=counts, drop_partitions=True)
    alone.check()
    if alone.refusal:
        assert topic in alone.refusal, alone.refusal
        meant = bucket.comes_back_as(label, cluster=False, counted=False, by_id=by_id)
        is_dubious = bool({label, meant} & bucket.dubious)
        assert is_dubious or meant is None or not is_any_sound(bucket, meant), f"{label}: {alone.refusal}"
        if not is_dubious and is_any_sound(bucket, label):  # by the name another incarnation is meant
            assert f"{topic}@TOPIC_ID" in alone.refusal, alone.refusal
            assert bucket.lives[label].topic_id in alone.refusal, alone.refusal


def is_any_sound(bucket: DamagedBucket, label: str) -> bool:
    return any(bucket.sound(place) for place in bucket.places(label) if place not in bucket.doubtful)


def check_explained(bucket: DamagedBucket, refusal: str, *, cluster: bool) -> None:
    """A refusal of everything names the damage: to the snapshots, to a topic's partition count, or to all there is."""
    if cluster and (bucket.is_cluster_harmed or bucket.dubious) and "cluster/" in refusal:
        return
    unclear = {label for label in bucket.miscounted | bucket.dubious if parse_incarnation(label)[0] in refusal}
    if unclear and ("--" in refusal or "@TOPIC_ID" in refusal):
        return
    assert not any(is_any_sound(bucket, label) for label in unclear), f"it does not say what to do: {refusal}"
    back = {bucket.comes_back_as(name, cluster=cluster, counted=False) for name in bucket.names}
    assert not any(is_any_sound(bucket, label) for label in back if label), refusal


def check_drill(bucket: DamagedBucket, directory: Path, *, cluster: bool) -> None:
    """What a drill says of the same: nothing that is damaged passes, and all of it is named."""
    equipment = DrillEquipment(store=bucket.store, clock=SystemClock(), version="1")
    before = {info.key: bucket.store.get(info.key)[0] for info in bucket.store.list("")}
    try:
        prepared = prepare(equipment, DrillRequest(topics=None, cluster=cluster), DRILL_ID)
        with open_scratch(directory, DRILL_ID) as scratch:
            report = carry_out(equipment, prepared, scratch)
    except HeadwaterError as error:
        check_explained(bucket, str(error), cluster=cluster)
        return
    finally:
        assert {info.key: bucket.store.get(info.key)[0] for info in bucket.store.list("")} == before
    assert decode_report(encode_report(report), "report") == report
    places = [f"{each.topic}:{each.partition} offsets {each.offset}-" for each in report.findings]
    said = "\n".join((*places, *map(str, report.findings), *report.left_out, *report.notes))
    for texts in bucket.said:
        assert any(each in said for each in texts), f"{texts} are not in {said}"
    labels = [*compared_labels(bucket, cluster=cluster)]
    for label in labels:
        for words in bucket.must_be_said(label):
            assert words in said, f"{words} is not in {said}"
    wanted = {place: bucket.runs(place) for label in labels for place in bucket.places(label) if place not in bucket.doubtful}
    for place, runs in wanted.items():
        for entry, _ in runs:
            if entry.key in bucket.harmed:
                assert f"{where_of(place)} offsets {entry.base_offset}-" in said, entry.key
    if bucket.is_damaged() and len(labels) == len(bucket.names):
        assert report.outcome is not DrillOutcome.PASSED or cluster or bucket.earlier, bucket.did
    if cluster:
        others = bucket.snapshot().state.others
        all_known = {what: report.metadata[what] for what in ("topics", "settings", "feature levels")}
        assert report.metadata == all_known | {what: len(others[kind]) for kind, what in NAMES.items()}
    sound = sum(entry.records for runs in wanted.values() for entry, _ in runs if entry.key not in bucket.harmed)
    assert report.compared.records >= sound


def compared_labels(bucket: DamagedBucket, *, cluster: bool) -> Iterator[str]:
    """The incarnations that come back for sure."""
    for name in bucket.names:
        label = bucket.comes_back_as(name, cluster=cluster, counted=False)
        is_dubious = name in bucket.dubious or label in bucket.dubious or (cluster and bucket.is_cluster_hostile)
        if label is not None and not is_dubious and is_any_sound(bucket, label):
            yield label


@pytest.mark.slow
@pytest.mark.parametrize("name", WAYS)
def test_each_way_of_damage_is_named_and_what_is_sound_comes_back(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_limits, "LIMITS", trees.SMALL)
    done = 0
    for seed in range(20 * EACH_WAY):
        bucket = DamagedBucket(seed)
        damage(bucket, name)
        if not bucket.did:
            continue
        try:
            check(bucket, seed, tmp_path)
        except BaseException as error:
            raise AssertionError(f"seed {seed} of {name}") from error
        if (done := done + 1) == EACH_WAY:
            return
    pytest.fail(f"{name} was done {done} times")


@pytest.mark.parametrize("context", [{"version": "9"}, {}])
@pytest.mark.parametrize("layout", ["blocks", "streaming", "chunks"])
def test_a_run_of_which_its_layout_can_make_nothing_is_a_hole(layout: str, context: dict[str, str], tmp_path: Path) -> None:
    for seed in range(100):
        bucket = DamagedBucket(seed)
        for log in bucket.logs.values():
            body = json.loads(bucket.store.get(log.head_key)[0])
            listed = next((each for each in body["entries"] if each.get("layout") == layout), None)
            if listed is None:  # it may be in a page
                continue
            bucket.take(log.head_key)
            listed["context"] = context
            bucket.put(log.head_key, resealed(body))
            bucket.lose(next(entry for entry, _ in log.runs if entry.base_offset == listed["base_offset"]))
            check(bucket, seed, tmp_path)
            return
    pytest.fail(f"no run of layout {layout}")


@pytest.mark.slow
@pytest.mark.parametrize("block", range(BLOCKS))
def test_any_damage_is_named_and_what_is_sound_comes_back(block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_limits, "LIMITS", trees.SMALL)
    did: Counter[str] = Counter()
    for seed in range(block, SEEDS, BLOCKS):
        bucket = DamagedBucket(seed)
        for _ in range(bucket.random.randint(1, 5)):
            damage(bucket)
        try:
            check(bucket, seed, tmp_path)
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {bucket.did}") from error
        did.update(bucket.did)
    assert did
