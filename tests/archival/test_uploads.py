"""What is uploaded, and what is not uploaded because it could not be listed."""

import contextlib
import io
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import archival.partition.archiver
from archival.partition.entry_reader import ArchivedEntries
from archival.partition.run_names import UniqueNames
from archival.partition.source import open_segment
from archival.partition.uploads import Uploads
from archival.plan.policy import Policy
from archival.plan.steps import Upload
from headwater_core.errors import (
    CorruptData,
    Fenced,
    HeadwaterError,
    NeedsUpgrade,
    TransientError,
    Unauthorised,
    UnknownOutcome,
    UnsupportedFormat,
    UploadStopped,
)
from headwater_core.layouts import open_layout
from headwater_core.objectstore.store import PLAIN, ObjectForm, ObjectInfo
from headwater_core.partition import PartitionId
from headwater_core.segments.local_log import LocalSegment
from headwater_core.segments.run_scan import scan_run
from manifests import keys
from manifests.document import FORMAT
from manifests.head import HEAD_FORMAT, Head
from manifests.repository import ManifestRepository
from manifests.topic import TopicManifest
from tests.archival.builders import EVERYTHING, PARTITION, SEALED, Agent, Directory, a_log, fill, live_bytes, ranges
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.segments.builders import a_batch, a_segment
from tests.manifests import format_1


class FlakyStore(MemoryStore):
    """Heads get the answers of `plan`, one each, then all is well: "lost" is a request that never arrives, "silent" one whose reply
    never does, "busy" a definite no."""

    def __init__(self) -> None:
        super().__init__()
        self.plan: list[str] = []
        self.refused: tuple[str, ...] = ()  # ends of keys that are not taken
        self.refusal: HeadwaterError = TransientError("slow down")

    def put(self, key: str, data: BinaryIO, *, size_bytes: int, form: ObjectForm = PLAIN) -> str:
        if key.endswith(self.refused):
            raise self.refusal
        return super().put(key, data, size_bytes=size_bytes, form=form)

    def replace(self, key: str, document: bytes, *, expected_tag: str) -> str:
        answer = self.plan.pop(0) if self.plan and key.endswith("manifest.json") else ""
        if answer == "busy":
            raise TransientError("slow down")
        if answer == "lost":
            raise UnknownOutcome("no reply")
        tag = super().replace(key, document, expected_tag=expected_tag)
        if answer == "silent":
            raise UnknownOutcome("no reply")
        return tag

    @property
    def runs(self) -> int:
        return sum(info.key.endswith(".log") for info in self.list("data/"))


@pytest.fixture
def store() -> FlakyStore:
    return FlakyStore()


@pytest.fixture
def agent(directory: Directory, store: FlakyStore) -> Agent:
    return Agent(directory.root, store=store)


def fails(agent: Agent, policy: Policy = EVERYTHING) -> None:
    with pytest.raises(TransientError):
        agent.step(policy)


# Nothing twice


@pytest.mark.parametrize("answer", ["busy", "lost"])
def test_what_was_uploaded_is_listed_later_and_not_uploaded_again(
    directory: Directory, agent: Agent, store: FlakyStore, answer: str
) -> None:
    fill(directory, 0, 10, end=20)
    agent.step(SEALED)
    for _ in range(3):
        store.plan = [answer] * 4
        fails(agent, SEALED)
    store.plan = []
    assert agent.run(SEALED)[0] == "archived"
    assert store.runs == 1


@pytest.mark.parametrize("refusal", [TransientError("slow down"), UnknownOutcome("no reply"), Unauthorised("no indexes")])
def test_an_index_that_is_refused_costs_no_second_run(
    directory: Directory, agent: Agent, store: FlakyStore, refusal: HeadwaterError
) -> None:
    written = fill(directory, 0, 10, end=20)
    agent.step(SEALED)
    store.refused, store.refusal = (".index",), refusal
    for _ in range(3):
        with pytest.raises(type(refusal)):
            agent.step(SEALED)
    store.refused = ()
    assert agent.run(SEALED)[0] == "archived"
    assert store.runs == 1
    assert live_bytes(store, agent.head) == written[: agent.head.entries[0].live_bytes]


def test_an_upload_that_is_stopped_is_found_where_an_earlier_attempt_left_it(
    directory: Directory, agent: Agent, store: FlakyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one arrived without an answer, and nobody could say so. The second was stopped before its first byte."""
    fill(directory, 0, 10, end=20)
    agent.step(SEALED)

    def stat(*_: Any) -> ObjectInfo:
        raise UnknownOutcome("no reply")

    def put(store: FlakyStore, key: str, data: BinaryIO, *, size_bytes: int, form: ObjectForm = PLAIN) -> str:
        MemoryStore.put(store, key, data, size_bytes=size_bytes, form=form)
        raise UnknownOutcome("no reply")

    with monkeypatch.context() as silence:
        silence.setattr(FlakyStore, "stat", stat)
        silence.setattr(FlakyStore, "put", put)
        fails(agent, SEALED)
    assert store.runs == 1

    def stop(size_bytes: int) -> None:
        raise UploadStopped("the topic is switched off for a moment")

    monkeypatch.setattr(FlakyStore, "put", reads_first)
    with pytest.raises(UploadStopped):
        agent.archiver.step(SEALED, pace=stop)
    assert agent.run(SEALED)[0] == "archived"
    assert store.runs == 1


def reads_first(store: FlakyStore, key: str, data: BinaryIO, *, size_bytes: int, form: ObjectForm = PLAIN) -> str:
    """As S3 does: the key is looked at when the body has come."""
    content = data.read(size_bytes)
    return MemoryStore.put(store, key, io.BytesIO(content), size_bytes=size_bytes)


def test_a_tail_that_grows_while_heads_are_refused_is_not_uploaded_again(directory: Directory, agent: Agent, store: FlakyStore) -> None:
    written = fill(directory, 0, end=5)
    agent.step()
    for end in (10, 15, 20):
        store.plan = ["busy"]
        fails(agent)
        directory.append(0, more := a_segment(end - 5, 5))
        directory.high_watermark(end)
        written += more
    assert agent.run() == ["archived", "archived", "caught up"]
    assert ranges(agent.head.entries) == [(0, 4), (5, 19)]
    assert store.runs == 2
    assert live_bytes(store, agent.head) == written


def test_under_another_claim_it_is_uploaded_again(directory: Directory, agent: Agent, store: FlakyStore) -> None:
    """Garbage collection may be about to delete what has a lower fence."""
    fill(directory, 0, 10, end=20)
    agent.step(SEALED)
    store.plan = ["busy"]
    fails(agent, SEALED)
    directory.epochs((0, 0), (1, 20))
    assert agent.run(SEALED)[:2] == ["claimed", "archived"]
    assert agent.head.entries[0].fence == agent.head.fence == 2
    assert store.runs == 2


def test_a_file_with_other_bytes_is_uploaded_again(directory: Directory, agent: Agent, store: FlakyStore) -> None:
    fill(directory, 0, 10, end=20)
    agent.step(SEALED)
    store.plan = ["busy"]
    fails(agent, SEALED)
    (directory.path / f"{0:020}.log").unlink()
    directory.segment(0, other := b"".join(a_batch(at, 2) for at in range(0, 10, 2)))
    assert agent.run(SEALED)[0] == "archived"
    assert live_bytes(store, agent.head) == other


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(["append", "roll", "step", "step", "busy", "lost", "silent"]), min_size=5, max_size=40))
def test_every_object_of_one_claim_is_listed_in_the_end(actions: list[str]) -> None:
    with tempfile.TemporaryDirectory() as root:
        directory, store = Directory(Path(root) / "logs"), FlakyStore()
        agent = Agent(directory.root, store=store)
        base, end, written = 0, 0, b""
        directory.segment(0)
        directory.high_watermark(0)
        agent.step()
        for action in [*actions, "append"]:
            if action == "append":
                directory.append(base, more := a_segment(end, 3))
                end += 3
                written += more
                directory.high_watermark(end)
            elif action == "roll" and end > base:
                base = end
                directory.segment(base)
            else:
                store.plan = {"busy": ["busy"], "lost": ["lost"] * 4, "silent": ["silent"]}.get(action, [])
                with contextlib.suppress(TransientError):
                    agent.step()
                store.plan = []
        agent.run()
        assert live_bytes(store, agent.head) == written
        assert store.runs == len(agent.head.entries)


def test_an_agent_that_was_outrun_learns_it_before_it_uploads(tmp_path: Path, store: FlakyStore) -> None:
    """Two replicas, and nothing says which one leads."""
    directories = [Directory(tmp_path / name) for name in "ab"]
    one = Agent(directories[0].root, store=store, writer="agent-a")
    other = Agent(directories[1].root, store=store, writer="agent-b", control=one.control)
    for at in range(0, 60, 10):
        for directory in directories:
            fill(directory, *range(0, at + 11, 10), end=at + 11)
        for agent in (one, other) if at % 20 else (other, one):
            agent.run(SEALED)
    assert store.runs == len(one.head.entries) == 6


def test_a_control_log_that_is_ahead_of_the_bucket_stops_nothing(directory: Directory, agent: Agent, store: FlakyStore) -> None:
    """A bucket that was brought back from an older copy."""
    fill(directory, 0, 10, 20, end=30)
    agent.step(SEALED)
    key = keys.head(PARTITION)
    older, _ = store.get(key)
    agent.step(SEALED)
    store.replace(key, older, expected_tag=store.get(key)[1])
    later = replace(agent)
    assert later.run(SEALED)[:-1] == ["archived", "archived"]


# What a newer version wrote


def newer(store: MemoryStore, key: str, document: msgspec.Struct) -> bytes:
    """As a later version would write it: a higher minor format, and a field that this one does not know."""
    if isinstance(document, Head):
        body = format_1.body_of(document, format=[HEAD_FORMAT[0], HEAD_FORMAT[1] + 1])
    else:
        body = msgspec.to_builtins(document) | {"format": [FORMAT[0], FORMAT[1] + 1]}
    raw = format_1.encode_body(body | {"seals": ["wax"]})
    store.replace(key, raw, expected_tag=store.get(key)[1])
    return raw


def test_a_head_that_a_newer_version_wrote_is_read_and_left_alone(directory: Directory, agent: Agent, store: FlakyStore) -> None:
    fill(directory, 0, 10, 20, end=30)
    agent.step(SEALED)
    agent.step(SEALED)
    raw = newer(store, keys.head(PARTITION), agent.head)
    objects = store.runs
    for each in (replace(agent), replace(agent, writer="agent-b")):  # one would upload, one would claim
        with pytest.raises(NeedsUpgrade, match=r"needs upgrade: manifest of .*format 2\.\d+; this one writes"):
            each.run(SEALED)
    assert store.get(keys.head(PARTITION))[0] == raw
    assert store.runs == objects
    assert agent.head.last_offset == 9
    held = agent.repository.load(PARTITION)
    with pytest.raises(NeedsUpgrade):
        agent.repository.commit(held, agent.head)


def test_a_head_of_an_unknown_format_that_comes_in_between_is_written_over_by_no_later_step(
    directory: Directory, agent: Agent, store: FlakyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.segment(0, a_segment(0, 10))
    directory.segment(10)
    directory.high_watermark(10)
    agent.run(SEALED)
    key = keys.head(PARTITION)
    newer = format_1.encode(agent.head, format=[HEAD_FORMAT[0] + 1, 0])
    store.replace(key, newer, expected_tag=store.get(key)[1])
    directory.segment(10, a_segment(10, 10))
    directory.segment(20)
    directory.high_watermark(20)
    with pytest.raises(UnsupportedFormat):
        agent.step(SEALED)

    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("it was known by then")

    for call in ("put", "create", "replace"):
        monkeypatch.setattr(store, call, refuse)
    with pytest.raises(UnsupportedFormat):
        agent.step(SEALED)
    assert store.get(key)[0] == newer


def test_a_head_of_an_older_format_is_carried_over(directory: Directory, agent: Agent, store: FlakyStore) -> None:
    fill(directory, 0, 10, end=20)
    agent.step(SEALED)
    store.replace(keys.head(PARTITION), format_1.encode(agent.head), expected_tag=store.get(keys.head(PARTITION))[1])
    replace(agent).run(SEALED)
    assert agent.head.format == (2, 1)


def test_topic_documents_that_a_newer_version_wrote_are_left_alone() -> None:
    store = MemoryStore()
    repository = ManifestRepository(store)
    seen = TopicManifest(cluster_id=PARTITION.cluster_id, topic="soup", topic_id=PARTITION.topic_id, partitions=1)
    held = repository.ensure_topic(seen).manifest
    key, current = keys.topic_manifest("soup", PARTITION.topic_id), keys.current("soup")
    raw = newer(store, key, held)
    assert repository.ensure_topic(seen).manifest.partitions == 1  # nothing to write
    with pytest.raises(NeedsUpgrade, match="topic manifest of soup"):
        repository.ensure_topic(msgspec.structs.replace(seen, partitions=2))
    assert store.get(key)[0] == raw
    found = repository.current("soup")
    assert found is not None
    raw = newer(store, current, found)
    other = PartitionId(PARTITION.cluster_id, "AQAAAAAAAAAAAAAAAAAAAA", 0, "soup")
    with pytest.raises(NeedsUpgrade, match="current incarnation of soup"):
        repository.ensure_topic(msgspec.structs.replace(seen, topic_id=other.topic_id))
    assert store.get(current)[0] == raw


# Several small segments in one commit


@pytest.fixture
def gathering(directory: Directory, store: FlakyStore) -> Agent:
    return Agent(directory.root, store=store, runs_max=3)


def test_small_segments_are_listed_by_one_commit(directory: Directory, gathering: Agent, store: FlakyStore) -> None:
    written = fill(directory, 0, 10, 20, 30, 40, 50, end=55)
    gathering.step(SEALED)
    versions = [gathering.head.version]
    while (outcome := gathering.step(SEALED)).progressed:
        versions.append(gathering.head.version)
    assert outcome.reason == "the rest is in a segment that is not sealed and committed"
    assert versions == [1, 2, 3]
    assert ranges(gathering.head.entries) == [(base, base + 9) for base in range(0, 50, 10)]
    assert live_bytes(store, gathering.head) == written[: len(live_bytes(store, gathering.head))]


def test_an_outcome_names_all_that_its_commit_made_live(directory: Directory, gathering: Agent) -> None:
    fill(directory, 0, 10, 20, 30, 40, end=45)
    gathering.step(SEALED)
    outcome = gathering.step(SEALED)
    assert outcome.entry is not None
    assert ranges([*outcome.before, outcome.entry]) == [(0, 9), (10, 19), (20, 29)]


def test_a_claim_that_comes_between_two_runs_is_met_by_their_commit(directory: Directory, store: FlakyStore) -> None:
    """And known of by then, from the control log."""
    fill(directory, 0, 10, 20, end=25)
    other, opened = Agent(directory.root, store=store, writer="agent-b"), list[int]()

    def open_meanwhile(segment: LocalSegment) -> BinaryIO:
        opened.append(segment.base_offset)
        if opened == [0]:
            assert other.step(SEALED).action == "claimed"
        return open_segment(segment)

    agent = Agent(directory.root, store=store, control=other.control, open_segment=open_meanwhile, runs_max=3)
    agent.step(SEALED)
    with pytest.raises(Fenced):
        agent.step(SEALED)
    assert opened == [0, 10]


def test_large_segments_are_listed_one_by_one(directory: Directory, gathering: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archival.partition.archiver, "RUNS_BYTES_MAX", 2 * len(a_segment(0, 10)) - 1)
    fill(directory, 0, 10, 20, 30, end=35)
    gathering.step(SEALED)
    gathering.step(SEALED)
    assert ranges(gathering.head.entries) == [(0, 9)]


@pytest.mark.parametrize("answer", ["busy", "lost", "silent"])
def test_runs_whose_commit_failed_are_not_uploaded_again(directory: Directory, gathering: Agent, store: FlakyStore, answer: str) -> None:
    fill(directory, 0, 10, 20, 30, end=35)
    gathering.step(SEALED)
    store.plan = [answer] * (1 if answer == "busy" else 4)
    if answer != "silent":
        fails(gathering, SEALED)
    store.plan = []
    gathering.run(SEALED)
    assert ranges(gathering.head.entries) == [(0, 9), (10, 19), (20, 29)]
    assert store.runs == 3


def test_a_later_run_that_fails_for_now_is_tried_again_under_its_name(directory: Directory, gathering: Agent, store: FlakyStore) -> None:
    fill(directory, 0, 10, 20, 30, end=35)
    gathering.step(SEALED)
    store.refused = ("2.index",)  # the second run's
    fails(gathering, SEALED)
    assert not gathering.head.entries
    store.refused = ()
    gathering.run(SEALED)
    assert ranges(gathering.head.entries) == [(0, 9), (10, 19), (20, 29)]
    assert store.runs == 3


def test_a_damaged_segment_does_not_keep_those_before_it_from_the_archive(
    directory: Directory, gathering: Agent, store: FlakyStore
) -> None:
    fill(directory, 0, 10, 20, 30, end=35)
    path = directory.path / f"{20:020}.log"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    gathering.step(SEALED)
    gathering.step(SEALED)
    assert ranges(gathering.head.entries) == [(0, 9), (10, 19)]
    with pytest.raises(CorruptData):
        gathering.step(SEALED)


def test_a_compacted_log_gets_a_commit_for_each_run(directory: Directory, gathering: Agent) -> None:
    fill(directory, 0, 10, 20, 30, end=35)
    directory.cleaned(0)
    gathering.step(SEALED)
    gathering.step(SEALED)
    assert ranges(gathering.head.entries) == [(0, 9)]


def test_a_step_before_the_one_that_was_begun_is_its_own() -> None:
    """As when a replacement is begun again."""
    uploads, segment = (
        Uploads(PARTITION, MemoryStore(), open_layout("segment"), UniqueNames(PARTITION, "segment", lambda: "0" * 32)),
        a_log(0, 20, hw=20).segments[0],
    )
    data = io.BytesIO(a_segment(10, 5))
    scan = scan_run(data, start=0, end=len(data.getvalue()), where="a run")
    assert scan
    uploads.begin(Upload(segment=segment, first=10, read_from=10, end=15))
    uploads.upload(uploads.new_entry(10, 14, scan, 1), data, scan)
    earlier = Upload(segment=segment, first=0, read_from=0, end=10)
    assert uploads.resumed(earlier) == earlier
    assert uploads.resumed(Upload(segment=segment, first=10, read_from=10, end=17)).end == 15
    other = replace(segment, generation=segment.generation._replace(inode=segment.generation.inode + 1))
    assert uploads.resumed(Upload(segment=other, first=10, read_from=10, end=17)).end == 17  # a cleaner's, say


def test_what_only_the_store_has_is_uploaded_at_a_pace_too(agent: Agent, directory: Directory) -> None:
    """As when a run is indexed again."""
    fill(directory, 0, 5, end=9)
    agent.run(SEALED)
    entry = agent.head.entries[0]
    scan = ArchivedEntries(agent.store).scan(entry, entry.next_offset, ())
    assert scan
    uploads, sent = (
        Uploads(PARTITION, agent.store, open_layout("segment"), UniqueNames(PARTITION, "segment", lambda: "0" * 32)),
        list[int](),
    )
    uploads.pace = sent.append
    again = uploads.upload(uploads.new_entry(entry.base_offset, entry.last_offset, scan, 1), ArchivedEntries(agent.store).open(entry), scan)
    assert agent.store.get(again.key)[0] == agent.store.get(entry.key)[0]
    assert sum(sent) == entry.size_bytes
