"""What is known of a manifest follows the bucket: it never falls behind by itself, and goes back where an operator restored a head."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from headwater_core.errors import TransientError
from headwater_core.partition import PartitionId
from hydration.archive.manifest_view import EntryIndex, HeldEntries, ManifestView
from manifests.head import Head
from manifests.index import ManifestIndex
from manifests.repository import Versioned
from tests.headwater_core.manual_clock import ManualClock
from tests.manifests.builders import a_head, an_entry

HEAD = a_head(an_entry(0, 9))
LOST = a_head(an_entry(0, 9), an_entry(10, 19, uid="aa" * 16), version=10)
AFTER = a_head(an_entry(0, 9), an_entry(10, 14, uid="bb" * 16), an_entry(15, 24, uid="cc" * 16), version=10, commit_id="d" * 32)


class Bucket:
    """Has one head; something may happen between a request for it and the answer."""

    def __init__(self, head: Head | None) -> None:
        self.head = head
        self.meanwhile: Callable[[], None] = lambda: None

    def load(self, partition: PartitionId) -> Versioned | None:
        answer = self.head
        self.meanwhile()
        return Versioned(answer, "tag", 1) if answer is not None else None


@pytest.fixture(params=["memory", "lmdb"])
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EntryIndex]:
    if request.param == "memory":
        yield HeldEntries()
    else:
        with ManifestIndex(tmp_path / "index") as opened:
            yield opened


def a_view(bucket: Bucket, index: EntryIndex | None = None, clock: ManualClock | None = None) -> ManifestView:
    return ManifestView(HEAD.partition_id, bucket, index or HeldEntries(), clock or ManualClock(), lambda name, work: Future())


def known(view: ManifestView) -> tuple[int, str] | None:
    """Where it ends, and the uid of the entry that holds offset 12."""
    entry = view.entry_now(12)
    return (view.extent.next_offset, entry.uid[:2] if entry is not None else "") if view.extent is not None else None


def test_a_manifest_that_is_gone_does_not_empty_an_archive_that_was_there() -> None:
    bucket = Bucket(HEAD)
    archived = a_view(bucket)
    archived.load()
    bucket.head = None
    with pytest.raises(TransientError, match="gone"):
        archived.load()
    assert archived.entry_at(5) is not None


def test_another_commit_of_the_known_version_replaces_what_is_known(index: EntryIndex) -> None:
    bucket = Bucket(LOST)
    view = a_view(bucket, index)
    view.load()
    assert known(view) == (20, "aa")
    bucket.head = AFTER
    view.load()
    assert known(view) == (25, "bb")


def test_a_head_that_was_restored_replaces_what_is_known(index: EntryIndex) -> None:
    bucket = Bucket(LOST)
    view = a_view(bucket, index)
    view.load()
    bucket.head = HEAD
    view.load()
    assert known(view) == (10, "")


def test_a_commit_of_this_process_replaces_a_lost_one_of_its_version(index: EntryIndex) -> None:
    view = a_view(Bucket(LOST), index)
    view.load()
    view.update(AFTER)
    assert known(view) == (25, "bb")


@pytest.mark.parametrize("head", [AFTER, HEAD])
def test_an_index_that_outlived_a_restart_takes_the_head_of_the_bucket(head: Head, tmp_path: Path) -> None:
    with ManifestIndex(tmp_path / "index") as index:
        a_view(Bucket(LOST), index).load()
    with ManifestIndex(tmp_path / "index") as index:
        assert index.kept
        view = a_view(Bucket(head), index)
        view.load()
        assert known(view) == ((25, "bb") if head is AFTER else (10, ""))


@pytest.mark.parametrize("before", [None, HEAD])
def test_an_answer_that_a_commit_has_overtaken_changes_nothing(before: Head | None, index: EntryIndex) -> None:
    bucket = Bucket(before)
    view = a_view(bucket, index)
    view.load()
    bucket.meanwhile = lambda: view.update(LOST)
    view.load()
    assert known(view) == (20, "aa")


def test_a_commit_that_is_reported_late_changes_nothing(index: EntryIndex) -> None:
    clock = ManualClock()
    view = a_view(Bucket(LOST), index, clock)
    view.load()
    clock.advance(5000)
    view.update(HEAD)
    assert known(view) == (20, "aa")
    assert view.age_s() == 5  # it says nothing of what there is now
    view.update(AFTER)
    assert view.age_s() == 0
