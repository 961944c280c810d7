"""Damage that is planted is found, all of it and nothing else; and what healthy archives look like is never told."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from archival.plan.policy import ChunkCommits, Policy, StreamLimits
from headwater.pipeline.runner import Threads
from headwater.pipeline.scan.buffers import PIECE_BYTES
from headwater.pipeline.scrub.findings import Kind
from headwater.pipeline.scrub.head_check import token_of
from headwater.pipeline.scrub.inventory import Inventory, Place, take_partition_inventory
from headwater.pipeline.scrub.scrub_state import ScrubState
from headwater.pipeline.scrub.scrubber import GRACE_MS, MILESTONES, Report, Sample, Scrubber, ScrubScope
from headwater_core.errors import (
    DiskFull,
    HeadwaterError,
    NotFound,
    NothingExamined,
    Partial,
    StoreGone,
    TransientError,
    Unauthorised,
    UsageError,
    VerificationFailed,
)
from headwater_core.layouts.chunks import Variant
from headwater_core.layouts.chunks.chunk_handle import CommitLimits
from headwater_core.layouts.chunks.chunks_layout import ChunksLayout
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.guard import GuardedStore
from headwater_core.segments.runindex import decode_index, encode_index
from manifests import chunk_keys, keys
from manifests.entry import Entry
from manifests.head import Head, encode_head
from manifests.page import page_key
from manifests.repository import ManifestRepository
from manifests.topic_survey import survey_topics
from tests.archival.builders import Agent, Directory
from tests.archival.stream_objects import STREAM
from tests.archival.test_lineage_brigade import ORDERS, archive_nodes
from tests.headwater.pipeline.bucket import OLD_MS, Bucket, Crash, Crashing, a_bucket
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.objectstore.meter import MeteredStore
from tests.headwater_core.objectstore.volatile_disk import VolatileDisk
from tests.headwater_core.segments.builders import a_segment
from tests.manifests.builders import PARTITION, a_head, an_entry
from tests.manifests.trees import Pages, grown

ROOT = Path(__file__).parents[4]
Found = set[tuple[str, Kind]]


def found(report: Report) -> Found:
    reported = [(each.key, each.kind) for each in report.findings]
    assert len(reported) == len(set(reported)), "reported twice"
    return set(reported)


def test_a_whole_archive_is_whole() -> None:
    bucket = a_bucket()
    for data in (True, False):
        report = bucket.scrub(data=data)
        assert found(report) == set()
        assert report.examined == len(bucket.entries())
        assert report.verdict("") is None
    assert bucket.scrub().read_bytes == sum(entry.size_bytes for _, entry in bucket.entries())


@pytest.mark.parametrize("nodes", ORDERS.values(), ids=list(ORDERS))
def test_branches_that_an_election_cut_are_no_damage(nodes: tuple[str, ...]) -> None:
    """Objects listed in two parts, entries cut inside, superseded and revived ones."""
    store = MemoryStore(clock := ManualClock())
    archive_nodes(store, nodes)
    manifests = survey_topics(store).manifests
    ManifestRepository(store).ensure_owner(manifests[0].cluster_id)
    report = Scrubber(store, ScrubScope(), clock).run(Threads(store, 2))
    assert found(report) - {(each, Kind.NO_MANIFEST) for each, _ in found(report)} == set()
    assert report.examined > 10


# Damage


@dataclass(frozen=True, slots=True)
class Target:
    """One partition to damage; no two plants share one."""

    head: Head

    @property
    def head_key(self) -> str:
        return keys.head(self.head.partition_id)

    @property
    def entries(self) -> list[Entry]:
        return [entry for entry in self.head.entries if not entry.gap]

    @property
    def keys(self) -> list[str]:
        return [key for entry in self.entries for key in (entry.key, entry.index_key)]


Plant = Callable[[st.DataObject, Bucket, Target], Found]


def missing(data: st.DataObject, bucket: Bucket, target: Target) -> Found:
    key = data.draw(st.sampled_from(target.keys))
    bucket.put(key, None)
    return {(key, Kind.MISSING)}


def truncated(data: st.DataObject, bucket: Bucket, target: Target) -> Found:
    key = data.draw(st.sampled_from(target.keys))
    content = bucket.content(key)
    bucket.put(key, content[: data.draw(st.integers(0, len(content) - 1))])
    return {(key, Kind.TRUNCATED)}


def lengthened(data: st.DataObject, bucket: Bucket, target: Target) -> Found:
    key = data.draw(st.sampled_from(target.keys))
    bucket.put(key, bucket.content(key) + data.draw(st.binary(min_size=1, max_size=100)))
    return {(key, Kind.TOO_LONG)}


def flipped(data: st.DataObject, bucket: Bucket, target: Target) -> Found:
    key = data.draw(st.sampled_from(target.keys))
    bucket.put(key, flip(data, bucket.content(key)))
    return {(key, Kind.FLIPPED)}


def flip(data: st.DataObject, content: bytes) -> bytes:
    damaged = bytearray(content)
    damaged[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    return bytes(damaged)


def swapped(data: st.DataObject, bucket: Bucket, target: Target) -> Found:
    one, other = data.draw(st.lists(st.sampled_from(target.keys), min_size=2, max_size=2, unique=True))
    content = bucket.content(one)
    bucket.put(one, bucket.content(other))
    bucket.put(other, content)
    return {(one, Kind.SWAPPED), (other, Kind.SWAPPED)}


def extra(data: st.DataObject, bucket: Bucket, target: Target) -> Found:
    entry, uid = data.draw(st.sampled_from(target.entries)), f"{data.draw(st.integers(0, 2**128 - 1)):032x}"
    key = data.draw(
        st.sampled_from(
            [
                keys.data(target.head.partition_id, entry.base_offset, entry.last_offset, entry.fence, uid),
                keys.index(keys.data(target.head.partition_id, entry.base_offset, entry.last_offset, entry.fence, uid)),
                keys.data_prefix(target.head.partition_id) + "notes.txt",
                f"data/{uid}",
                f"data/00000000/{target.head.topic}/{target.head.topic_id}/{target.head.partition}/{uid}",
            ]
        )
    )
    bucket.put(key, bucket.content(entry.key))
    return {(key, Kind.EXTRA)}


def gap(data: st.DataObject, bucket: Bucket, target: Target) -> Found:
    """An entry is missing from the head. Its object is then one that nobody lists."""
    entries = list(target.head.entries)
    at = data.draw(st.sampled_from([at for at, entry in enumerate(entries) if not entry.gap and len(entries) > 1] or [-1]))
    if at < 0:
        return set()
    lost = entries.pop(at)
    bucket.rewrite(target.head, entries=tuple(entries))
    return {(target.head_key, Kind.GAP), (lost.key, Kind.EXTRA), (lost.index_key, Kind.EXTRA)}


def overlap(data: st.DataObject, bucket: Bucket, target: Target) -> Found:
    at = data.draw(st.integers(0, len(target.head.entries) - 1))
    entries = list(target.head.entries)
    bucket.rewrite(target.head, entries=(*entries[: at + 1], *entries[at:]))
    return {(target.head_key, Kind.OVERLAP)}


def falling_epochs(data: st.DataObject, bucket: Bucket, target: Target) -> Found:
    entries = list(target.head.entries)
    if len(target.entries) != len(entries) or len(entries) < 2:
        return set()
    at = data.draw(st.integers(0, len(entries) - 2))
    entries[at] = msgspec.structs.replace(entries[at], epochs=((10**6, entries[at].base_offset),))
    bucket.rewrite(target.head, entries=tuple(entries))
    return {(target.head_key, Kind.EPOCHS), (entries[at].key, Kind.DISAGREES)}


def false_count(data: st.DataObject, bucket: Bucket, target: Target) -> Found:
    entry = data.draw(st.sampled_from(target.entries))
    said: dict[str, Any] = data.draw(
        st.sampled_from(
            [
                {"records": entry.records + 1},
                {"first_timestamp_ms": (entry.first_timestamp_ms or 0) - 1},
                {"last_timestamp_ms": None},
                {"aborted": entry.aborted + 1},
                {"open_from": 0 if entry.open_from is None else None},
                {"max_producer_id": 77_777},
            ]
        )
    )
    lying = tuple(msgspec.structs.replace(each, **said) if each == entry else each for each in target.head.entries)
    bucket.rewrite(target.head, entries=lying)
    return {(entry.key, Kind.DISAGREES)} if lying != target.head.entries else set()


def another_index(data: st.DataObject, bucket: Bucket, target: Target) -> Found:
    """Whole, with the digest that the head says, and not of these data."""
    entry = data.draw(st.sampled_from(target.entries))
    index = decode_index(bucket.content(entry.index_key))
    index.points.max_timestamps_ms[0] = 7
    lying = encode_index(replace(index, epochs=index.epochs[:1], producers=()))
    if lying == bucket.content(entry.index_key):
        return set()
    bucket.put(entry.index_key, lying)
    listed = msgspec.structs.replace(entry, index_digest=digest_of(lying), index_bytes=len(lying))
    bucket.rewrite(target.head, entries=tuple(listed if each == entry else each for each in target.head.entries))
    return {(entry.index_key, Kind.INDEX)}


def damaged_head(data: st.DataObject, bucket: Bucket, target: Target) -> Found:
    raw = bucket.content(target.head_key)
    bucket.put(target.head_key, data.draw(st.sampled_from([b"", raw[: len(raw) // 2], flip(data, raw.strip())])))
    return {(target.head_key, Kind.HEAD)}


def lost_head(data: st.DataObject, bucket: Bucket, target: Target) -> Found:
    bucket.put(target.head_key, None)
    return {(target.head_key, Kind.NO_MANIFEST)}


PLANTS: tuple[Plant, ...] = (
    missing,
    truncated,
    lengthened,
    flipped,
    swapped,
    extra,
    gap,
    overlap,
    falling_epochs,
    false_count,
    another_index,
    damaged_head,
    lost_head,
)
DOCUMENTS = ("headwater.json", "current.json", "topic.json")


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_planted_damage_is_found_completely_and_nothing_else(data: st.DataObject) -> None:
    bucket = a_bucket()
    targets = [Target(head) for head in bucket.heads if any(not entry.gap for entry in head.entries)]
    planted: Found = set()
    for target in data.draw(st.lists(st.sampled_from(targets), unique_by=lambda each: each.head_key, max_size=4)):
        planted |= data.draw(st.sampled_from(PLANTS))(data, bucket, target)
    for name in data.draw(st.sets(st.sampled_from(DOCUMENTS), max_size=2)):
        key = data.draw(st.sampled_from([info.key for info in bucket.store.list("") if info.key.endswith(name)]))
        bucket.put(key, data.draw(st.sampled_from([None, b"{}", b""])))
        planted.add((key, Kind.DOCUMENT))
    report = bucket.scrub()
    assert found(report) == planted
    sums, kinds = report.sums(), [kind for _, kind in planted]
    assert (sums["missing"], sums["extra"], sums["unexamined"]) == (kinds.count(Kind.MISSING), kinds.count(Kind.EXTRA), 0)
    assert sums["damaged"] == len(report.findings) - sums["missing"] - sums["extra"]
    assert isinstance(report.verdict(""), VerificationFailed) == bool(planted)
    seen_without_reading = {(key, kind) for key, kind in planted if kind is not Kind.DISAGREES and kind is not Kind.INDEX}
    assert found(bucket.scrub(data=False)) - {(key, Kind.INDEX) for key, _ in planted} == seen_without_reading


def test_a_flipped_bit_is_named_by_offset_and_byte() -> None:
    bucket = a_bucket()
    _, entry = bucket.entries()[-1]
    content = bytearray(bucket.content(entry.key))
    content[-1] ^= 1
    bucket.put(entry.key, bytes(content))
    report = bucket.scrub()
    assert str(report.verdict("")).startswith("1 problem found (damaged, missing or unexpected object)")
    (finding,) = report.findings
    assert "CRC mismatch in the batch at offset" in finding.problem
    assert entry.digest in finding.problem


def test_a_swap_names_the_other_object() -> None:
    bucket = a_bucket()
    (_, one), (_, other) = bucket.entries()[:2]
    content = bucket.content(one.key)
    bucket.put(one.key, bucket.content(other.key))
    bucket.put(other.key, content)
    reported = {each.key: each.problem for each in bucket.scrub().findings}
    assert other.key in reported[one.key]
    assert one.key in reported[other.key]


# What is healthy


def test_what_no_head_lists_is_told_when_no_upload_can_be_that_old() -> None:
    bucket = a_bucket()
    head, entry = bucket.entries()[0]
    key = keys.data(head.partition_id, entry.base_offset, entry.last_offset, entry.fence, "f" * 32)
    bucket.store.create(key, b"under way")
    bucket.store.create("data/stray", b"under way")
    assert found(bucket.scrub()) == set()
    bucket.clock.advance(GRACE_MS)
    assert found(bucket.scrub()) == set()
    bucket.clock.advance(1)
    assert found(bucket.scrub()) == {(key, Kind.EXTRA), ("data/stray", Kind.EXTRA)}
    assert found(bucket.scrub(grace_ms=OLD_MS)) == set()


class Replacing(MemoryStore):
    """An archiver beside the scrub: at the first read of a data object it commits without it, and garbage collection follows."""

    bucket: Bucket

    def read_into(self, key: str, buffer: memoryview, *, start: int) -> Mapping[str, str]:
        if key == self.victim:
            self.victim = ""
            self.replace_head()
            self.delete(key)
        return super().read_into(key, buffer, start=start)

    victim = ""
    replace_head: Callable[[], None]


@pytest.mark.parametrize("is_committed", [True, False])
def test_an_object_that_was_replaced_meanwhile_is_not_missing(is_committed: bool) -> None:
    bucket = a_bucket()
    store = Replacing(bucket.clock)
    for info in list(bucket.store.list("")):
        store.create(info.key, bucket.content(info.key))
    head = next(head for head in bucket.heads if len(head.entries) > 1)
    *before, last = head.entries
    store.victim = last.key

    def commit() -> None:
        repository = ManifestRepository(store)
        held = repository.load(head.partition_id)
        assert held
        if is_committed:
            repository.commit(held, msgspec.structs.replace(held.head, entries=tuple(before), last_offset=before[-1].last_offset))

    store.replace_head = commit
    report = Scrubber(store, ScrubScope(), bucket.clock).run(Threads(store, 2))
    assert found(report) == (set() if is_committed else {(last.key, Kind.MISSING)})
    assert report.replaced == is_committed


class Silent(MemoryStore):
    """Does not answer for one object."""

    silent = ""

    def read_into(self, key: str, buffer: memoryview, *, start: int) -> Mapping[str, str]:
        if key == self.silent:
            raise TransientError(f"{key}: timed out")
        return super().read_into(key, buffer, start=start)


def test_what_cannot_be_read_now_is_unexamined_and_no_damage() -> None:
    bucket = a_bucket()
    store = Silent(bucket.clock)
    for info in list(bucket.store.list("")):
        store.create(info.key, bucket.content(info.key))
    _, entry = bucket.entries()[0]
    store.silent = entry.key
    report = Scrubber(store, ScrubScope(grace_ms=OLD_MS), bucket.clock).run(Threads(store, 2))
    assert found(report) == {(entry.key, Kind.UNEXAMINED)}
    assert (report.sums()["unexamined"], report.sums()["damaged"]) == (1, 0)
    assert isinstance(report.verdict(""), Partial)


def test_nothing_to_examine_is_said() -> None:
    store = MemoryStore(clock := ManualClock())
    assert isinstance(Scrubber(store, ScrubScope(), clock).run(Threads(store, 1)).verdict(""), NothingExamined)
    with pytest.raises(NotFound):
        Scrubber(store, ScrubScope(topic="absent"), clock)


def test_a_selection_looks_at_what_it_names_alone() -> None:
    bucket = a_bucket()
    _, other = next(each for each in bucket.entries() if each[0].topic == "till.sales")
    bucket.put(other.key, None)
    assert found(bucket.scrub(topic="stock.levels")) == set()
    assert found(bucket.scrub(topic="till.sales")) == {(other.key, Kind.MISSING)}
    assert bucket.scrub(topic="stock.levels", partition=1).partitions == 1
    with pytest.raises(NotFound):
        bucket.scrub(topic="stock.levels", partition=2)


def test_a_topic_of_which_only_data_are_left_is_found_by_its_name() -> None:
    bucket = a_bucket()
    for info in list(bucket.store.list("meta/till.sales/")):
        bucket.put(info.key, None)
    wanted = {(keys.head(head.partition_id), Kind.NO_MANIFEST) for head in a_bucket().heads if head.topic == "till.sales"}
    assert wanted
    assert found(bucket.scrub()) == found(bucket.scrub(topic="till.sales")) == wanted


# How much is read


def test_each_byte_is_asked_for_once() -> None:
    bucket = a_bucket()
    store = MeteredStore(bucket.store, log_calls=10_000)
    Scrubber(store, ScrubScope(), bucket.clock).run(Threads(store, 2))
    read = [call for call in store.log if call.operation == "read_into" and call.key.endswith(".log")]
    assert sum(call.size_bytes for call in read) == sum(entry.size_bytes for _, entry in bucket.entries())
    assert len(read) == sum(-(-entry.size_bytes // PIECE_BYTES) for _, entry in bucket.entries())
    assert store.calls["stat"] == 0


# Incremental runs and samples


def test_the_second_run_reads_only_what_is_new_or_was_damaged() -> None:
    bucket, seen = a_bucket(), ScrubState("memory:")
    (_head, first), (_, second), *_ = bucket.entries()
    bucket.put(first.key, b"damaged")
    everything = len(bucket.entries())
    report = bucket.scrub(seen)
    assert (report.examined, report.skipped) == (everything, 0)
    again = bucket.scrub(seen)
    assert (again.examined, again.skipped) == (1, everything - 1)
    assert found(again) == {(first.key, Kind.TRUNCATED)}
    bucket.put(second.key, None)  # the listing tells it, read or not
    assert found(bucket.scrub(seen)) == {(first.key, Kind.TRUNCATED), (second.key, Kind.MISSING)}


def test_a_state_is_kept_and_belongs_to_one_archive(tmp_path: Any) -> None:
    bucket, path = a_bucket(), tmp_path / "state.json"
    bucket.scrub(ScrubState.load(path, "memory:"))
    assert bucket.scrub(ScrubState.load(path, "memory:")).examined == 0
    with pytest.raises(UsageError, match="memory:"):
        ScrubState.load(path, "s3://elsewhere")
    path.write_bytes(path.read_bytes().replace(b"memory:", b"memory;"))
    with pytest.raises(Exception, match="remove the file"):
        ScrubState.load(path, "memory:")


def test_what_is_no_longer_listed_is_forgotten() -> None:
    bucket, seen = a_bucket(), ScrubState("memory:")
    bucket.scrub(seen)
    head = next(head for head in bucket.heads if len(head.entries) > 1)
    *before, last = head.entries
    bucket.rewrite(head, entries=tuple(before), last_offset=before[-1].last_offset)
    bucket.scrub(seen)
    assert not seen.has(f"{head.topic_id}:{head.partition}", token_of(last))
    assert seen.has(f"{head.topic_id}:{head.partition}", token_of(before[0]))


class Hurrying(ManualClock):
    """A minute passes with every look at it: whatever is done now and then is done each time."""

    def monotonic_s(self) -> float:
        self.at_ms += 60_000
        return super().monotonic_s()


@pytest.mark.parametrize("seed", range(10))
def test_runs_that_end_early_and_are_repeated_end_like_an_undisturbed_one(seed: int, tmp_path: Path) -> None:
    random, bucket = Random(seed), a_bucket()
    for _, entry in random.sample(bucket.entries(), 2):
        bucket.put(entry.key, b"damaged")
    calm = bucket.scrub(ScrubState.load(tmp_path / "calm", "memory:"))
    examined = 0
    for _ in range(random.randrange(1, 4)):
        scrub = Scrubber(bucket.store, ScrubScope(), Hurrying(bucket.clock.at_ms), ScrubState.load(tmp_path / "state", "memory:"))
        with suppress(Crash):
            scrub.run(Crashing(bucket.store, random.randrange(3)))
        examined += scrub.report.examined
    last = bucket.scrub(ScrubState.load(tmp_path / "state", "memory:"))
    assert last.findings == calm.findings
    assert (tmp_path / "state").read_bytes() == (tmp_path / "calm").read_bytes()
    assert last.examined + last.skipped == calm.examined


def test_what_was_found_whole_is_remembered_after_a_power_loss(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    disk, seen = VolatileDisk(tmp_path / "data"), ScrubState("memory:", tmp_path / "data" / "state")
    seen.add("soup", "token")
    with disk.watching():
        seen.save()
    assert ScrubState.load(disk.after_power_loss(tmp_path / "left") / "state", "memory:").has("soup", "token")


@pytest.mark.slow
@pytest.mark.parametrize("kill_at", ["scrub.examined", "scrub.examined:9", "scrub.state_written", "scrub.state_renamed"])
def test_killed_at_any_step_the_next_run_finishes(kill_at: str, tmp_path: Path) -> None:
    assert kill_at.partition(":")[0] in MILESTONES
    bucket = a_bucket()
    _, entry = bucket.entries()[3]
    bucket.put(entry.index_key, b"damaged")
    bucket.write_to(tmp_path / "bucket")

    def run(state: str, kill_at: str = "") -> tuple[int, str]:
        command = [
            sys.executable,
            "-m",
            "tests.kill_at",
            "jobs",
            "scrub",
            "--state",
            state,
            "-o",
            "jsonl",
        ]
        command += ["--store", (tmp_path / "bucket").as_uri()]
        environment = {**os.environ, "KILL_AT": kill_at, "PYTHONPATH": str(ROOT)}
        ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        return ran.returncode, ran.stdout

    assert run("state", kill_at)[0] == -signal.SIGKILL
    assert run("state") == run("calm")
    assert run("calm")[0] == 4
    assert (tmp_path / "state").read_bytes() == (tmp_path / "calm").read_bytes()


@pytest.mark.parametrize("fraction", [1.0, 0.5, 0.1, 1 / 7])
def test_a_rotating_sample_covers_everything_within_its_period(fraction: float) -> None:
    bucket = a_bucket()
    everything = len(bucket.entries())
    examined = []
    for _ in range(Sample.of_day(fraction, 0).period):
        sample = Sample.of_day(fraction, bucket.clock.now_ms())
        assert bucket.scrub(sample=sample).examined == bucket.scrub(sample=sample).examined  # the same all day
        examined.append(bucket.scrub(sample=sample).examined)
        bucket.clock.advance(24 * 3600 * 1000)
    assert sum(examined) == everything


@pytest.mark.parametrize("fraction", [0, -0.1, 1.1, 1e-9])
def test_a_sample_of_nothing_is_refused(fraction: float) -> None:
    with pytest.raises(UsageError):
        Sample.of_day(fraction, 0)


def test_a_damaged_page_hides_no_other_fault_of_its_head() -> None:
    pages = Pages()
    entries = [an_entry(at * 10, at * 10 + 9, epochs=((3 if at == 39 else 5, at * 10),)) for at in range(40)]
    tree = grown(pages, entries)
    head = msgspec.structs.replace(a_head(*entries), entries=tree)
    pages.store.create(keys.head(PARTITION), encode_head(head))
    place = Place(PARTITION.topic, PARTITION.topic_id, PARTITION.partition)
    inventory = Inventory(cluster_id=PARTITION.cluster_id, places=(place,), findings=(), size_bytes=0)

    def kinds() -> list[Kind]:
        return [each.kind for each in take_partition_inventory(pages.store, place, inventory, before_ms=0).findings]

    assert kinds() == [Kind.EPOCHS]
    pages.store.delete(page_key(PARTITION, tree.references[0]))
    assert kinds() == [Kind.PAGE, Kind.EPOCHS]


@pytest.mark.parametrize("variant", list(Variant))
def test_chunks_of_an_open_segment_are_no_orphans(variant: Variant, tmp_path: Path) -> None:
    clock = ManualClock()
    agent = Agent(tmp_path, MemoryStore(clock), clock=clock, owned=False, offloader=ChunksLayout(variant, 500))
    directory = Directory(tmp_path)
    directory.segment(0)
    directory.append(0, a_segment(0, 9))
    directory.high_watermark(9)
    limits = StreamLimits(1 << 20, 10**9, chunks=ChunkCommits(variant, CommitLimits(100, 500, 1), 10**9))
    agent.run(Policy(stream=limits))
    partition = agent.head.partition_id
    there = {info.key for info in agent.store.list(chunk_keys.CHUNKS)}
    assert agent.head.pending
    assert there
    place = Place(partition.topic, partition.topic_id, partition.partition)
    queue = chunk_keys.named(min(there)).place.queue
    inventory = Inventory(cluster_id=None, places=(place,), findings=(), size_bytes=0, queues={partition.topic_partition: (queue,)})

    def extras() -> set[str]:
        late_ms = clock.now_ms() + GRACE_MS
        return {each.key for each in take_partition_inventory(agent.store, place, inventory, before_ms=late_ms).findings}

    assert extras() == set()
    agent.store.create(stray := f"{queue}/commitLog/seg-77/chunk-0", b"x")
    assert extras() == {stray}


def test_objects_that_streaming_has_not_listed_yet_are_no_orphans(tmp_path: Path) -> None:
    """They are complete, and their commit is to come; those of a failed attempt are orphans, and so is what has no name of ours."""
    clock = ManualClock()
    agent = Agent(tmp_path, MemoryStore(clock), clock=clock, owned=False)
    directory = Directory(tmp_path)
    directory.segment(0)
    directory.append(0, a_segment(0, 9))
    directory.high_watermark(9)
    agent.run(STREAM)
    partition, (assigned,) = agent.head.partition_id, agent.head.pending
    place = Place(partition.topic, partition.topic_id, partition.partition)
    inventory = Inventory(cluster_id=None, places=(place,), findings=(), size_bytes=0)

    def put(uid: str) -> set[str]:
        data = keys.data(partition, 0, 8, assigned.fence, uid, "streaming")
        for suffix in ("", "-index", "-meta"):
            agent.store.create(data + suffix, b"x")
        return {data, f"{data}-index", f"{data}-meta"}

    def extras() -> set[str]:
        late_ms = clock.now_ms() + GRACE_MS
        return {each.key for each in take_partition_inventory(agent.store, place, inventory, before_ms=late_ms).findings}

    assert assigned.is_assigned
    named = put(assigned.uid)
    assert extras() == set()
    failed = put("e" * 32)
    assert extras() == failed
    other = Agent(tmp_path, agent.store, clock=clock, owned=False)  # a process that begins again: what was open has failed
    other.run(STREAM)
    assert {each.uid for each in other.head.pending if each.is_assigned} != {assigned.uid}
    assert extras() == failed | named


@pytest.mark.parametrize("variant", list(Variant))
def test_without_a_manifest_each_segment_says_what_is_left_of_it(variant: Variant, tmp_path: Path) -> None:
    """Its state, how far it is whole, and the chunk that is missing; of all segments but the last, and of that."""
    clock = ManualClock()
    agent = Agent(tmp_path, MemoryStore(clock), clock=clock, offloader=ChunksLayout(variant, 500, segment_bytes=1500))
    directory = Directory(tmp_path)
    for base in range(0, 60, 10):
        directory.segment(base)
        directory.append(base, a_segment(base, base + 10))
    directory.segment(60)
    directory.high_watermark(60)
    agent.run(Policy())
    store, partition = agent.store, agent.head.partition_id
    for info in list(store.list(keys.META)):
        store.delete(info.key)
    found = sorted({name.place for _, name in chunk_keys.stored_chunks(store, partition.topic_partition)}, key=lambda place: place.base)
    assert len(found) > 2
    before = {info.key for info in store.list("")}

    def problems() -> dict[str, str]:
        report = Scrubber(store, ScrubScope(), clock).run(Threads(store, 2))
        assert {each.kind for each in report.findings} == {Kind.NO_MANIFEST}
        return {each.key: each.problem for each in report.findings if each.key.endswith("/") and "…" not in each.key}

    whole = problems()
    assert list(whole) == [place.prefix for place in found]
    first, last = whole[found[0].prefix], whole[found[-1].prefix]
    assert "consolidation pending; its bytes up to " in first
    assert ("consolidation pending" if variant is Variant.FIXED else "open") in last
    position = max(name.position or 0 for _, name in chunk_keys.stored_chunks(store, partition.topic_partition) if name.place == found[0])
    store.delete(lost := found[0].chunk_key(position))
    after = problems()
    assert f"lost chunk; its bytes up to {position} are whole; {lost}: bytes {position} to " in after[found[0].prefix]
    assert {key: said for key, said in after.items() if key != found[0].prefix} == {
        key: said for key, said in whole.items() if key != found[0].prefix
    }
    assert {info.key for info in store.list("")} == before - {lost}, "nothing is written"


def test_of_very_many_segments_without_a_manifest_some_are_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.pipeline.scrub.unlisted_segments.SEGMENTS_MAX", 3)
    store, clock = MemoryStore(), ManualClock()
    for base in range(5):
        for position in (0, 1):
            store.create(f"chunks/{PARTITION.cluster_id}/node.1/orders/0/commitLog/seg-{base}/chunk-{position}", b"x")
    report = Scrubber(store, ScrubScope(), clock).run(Threads(store, 2))
    assert sum(each.key.endswith("/") and "seg-" in each.key for each in report.findings) == 3
    assert "no manifest: 2 more segments are there, which were not opened" in {each.problem for each in report.findings}


class Failing:
    """A store's guard: every call raises `error` from the one of this number on."""

    def __init__(self, error: HeadwaterError, first: int) -> None:
        self._error, self._first, self.calls = error, first, 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self.calls += 1
        if self.calls > self._first:
            raise self._error
        yield


ENVIRONMENT = [StoreGone("the disk is not mounted"), DiskFull("no space"), Unauthorised("403"), TransientError("reset")]


@pytest.mark.parametrize("error", ENVIRONMENT, ids=lambda error: type(error).__name__)
def test_trouble_of_the_environment_is_never_damage(error: HeadwaterError) -> None:
    """Wherever it begins: with each call of a whole scrub."""
    bucket = a_bucket()

    def kinds(first: int) -> tuple[set[Kind], int]:
        failing = Failing(error, first)
        store = GuardedStore(bucket.store, failing)
        try:
            report = Scrubber(store, ScrubScope(), bucket.clock).run(Threads(store, 1))
        except type(error):
            return set(), failing.calls
        return {each.kind for each in report.findings}, failing.calls

    found_kinds, calls = kinds(sys.maxsize)
    assert (found_kinds, calls > 10) == (set(), True)
    seen = [kinds(first)[0] for first in range(calls)]
    assert set[Kind]().union(*seen) == {Kind.UNEXAMINED}


@pytest.mark.parametrize("error", ENVIRONMENT, ids=lambda error: type(error).__name__)
def test_a_page_that_cannot_be_read_now_is_no_damage(error: HeadwaterError) -> None:
    pages = Pages()
    tree = grown(pages, [an_entry(at * 10, at * 10 + 9) for at in range(40)])
    pages.store.create(keys.head(PARTITION), encode_head(msgspec.structs.replace(a_head(*tree), entries=tree)))
    place = Place(PARTITION.topic, PARTITION.topic_id, PARTITION.partition)
    inventory = Inventory(cluster_id=PARTITION.cluster_id, places=(place,), findings=(), size_bytes=0)
    failing = Failing(error, sys.maxsize)
    assert take_partition_inventory(GuardedStore(pages.store, failing), place, inventory, before_ms=0).findings == ()
    for first in range(failing.calls):
        store = GuardedStore(pages.store, Failing(error, first))
        found_kinds = [each.kind for each in take_partition_inventory(store, place, inventory, before_ms=0).findings]
        assert found_kinds == [Kind.UNEXAMINED], first
