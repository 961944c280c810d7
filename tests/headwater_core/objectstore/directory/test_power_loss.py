"""What a directory store has confirmed is there after a power loss, whatever fails before."""

import io
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headwater_core.errors import AlreadyExists, HeadwaterError, TransientError, UnknownOutcome
from headwater_core.objectstore.directory import DirectoryStore, durable_names
from headwater_core.objectstore.store import NewObject
from manifests.repository import ManifestRepository
from tests.archival.builders import Agent, Directory, load
from tests.headwater_core.objectstore.volatile_disk import VolatileDisk
from tests.headwater_core.segments.builders import a_segment


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[VolatileDisk]:
    (tmp_path / "disk").mkdir()
    with VolatileDisk(tmp_path / "disk").watching() as disk:
        yield disk


@pytest.fixture
def store(disk: VolatileDisk) -> DirectoryStore:
    return DirectoryStore(disk.root / "mnt" / "bucket")


def after_power_loss(disk: VolatileDisk, tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(disk.after_power_loss(tmp_path / "after") / "mnt" / "bucket")


def test_what_was_confirmed_survives(disk: VolatileDisk, store: DirectoryStore, tmp_path: Path) -> None:
    store.put("data/a/b/c.log", io.BytesIO(b"segment"), size_bytes=7)
    tag = store.create("meta/x/y.json", b"1")
    store.replace("meta/x/y.json", b"2", expected_tag=tag)
    store.create("meta/x/z.json", b"3")
    store.delete("meta/x/z.json")
    after = after_power_loss(disk, tmp_path)
    assert {info.key: after.get(info.key)[0] for info in after.list("")} == {"data/a/b/c.log": b"segment", "meta/x/y.json": b"2"}


def objects(*keys: str) -> list[NewObject]:
    return [NewObject(key, io.BytesIO(key.encode()), len(key)) for key in keys]


def test_what_was_put_together_survives_with_one_sync_of_each_directory(disk: VolatileDisk, store: DirectoryStore, tmp_path: Path) -> None:
    store.put_all(objects("data/x/first"))
    synced: list[Path] = []

    def fails(path: Path) -> bool:
        synced.append(path)
        return False

    disk.fails = fails
    keys = {"data/x/a", "data/x/b", "data/y/c"}
    store.put_all(objects(*sorted(keys)))
    assert sorted(path.name for path in synced if path.is_dir()) == ["data", "x", "y"]
    assert len(synced) == 6, "and each file"
    after = after_power_loss(disk, tmp_path)
    assert {info.key: after.get(info.key)[0].decode() for info in after.list("data/")} == {key: key for key in (*keys, "data/x/first")}


def test_of_what_was_put_together_no_name_is_given_before_all_files_are_synced(disk: VolatileDisk, store: DirectoryStore) -> None:
    store.create("old", b"0")
    fates = iter((False, False, True))
    disk.fails = lambda path: not path.is_dir() and next(fates)
    with pytest.raises(TransientError):
        store.put_all(objects("a", "b", "c"))
    disk.fails = lambda _: False
    assert [info.key for info in store.list("")] == ["old"]


def test_what_was_named_before_a_refusal_is_there_after_a_power_loss(
    disk: VolatileDisk, store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create("b", b"of another")
    with monkeypatch.context() as overtaken:
        overtaken.setattr(Path, "is_file", lambda _: False)
        with pytest.raises(AlreadyExists):
            store.put_all(objects("x/a", "b", "x/c"))
    after = after_power_loss(disk, tmp_path)
    assert {info.key: after.get(info.key)[0] for info in after.list("")} == {"b": b"of another", "x/a": b"x/a"}


def test_where_several_directories_cannot_be_synced_none_is_read_back_from_memory(disk: VolatileDisk, store: DirectoryStore) -> None:
    store.create("old", b"0")
    disk.fails = directories
    with pytest.raises(UnknownOutcome):
        store.put_all(objects("x/a", "y/b"))
    disk.fails = lambda path: path.name == "y"
    with pytest.raises(TransientError, match="syncing"):
        store.stat("x/a")
    disk.fails = lambda _: False
    assert store.get("y/b")[0] == b"y/b"


def directories(path: Path) -> bool:
    return path.is_dir()


WRITES: list[Callable[[DirectoryStore], object]] = [
    lambda store: store.put("new/a", io.BytesIO(b"a"), size_bytes=1),
    lambda store: store.create("new/a", b"a"),
    lambda store: store.replace("old", b"a", expected_tag=store.get("old")[1]),
    lambda store: store.delete("old"),
]


@pytest.mark.parametrize("write", WRITES)
def test_a_name_that_could_not_be_synced_is_not_read_back_from_memory(
    write: Callable[[DirectoryStore], object], disk: VolatileDisk, store: DirectoryStore
) -> None:
    store.create("old", b"0")
    disk.fails = directories
    with pytest.raises(UnknownOutcome):
        write(store)
    uses: list[Callable[[], object]] = [
        lambda: store.get("new/a"),
        lambda: store.stat("new/a"),
        lambda: store.get("old"),
        lambda: store.create("new/a", b"a"),
        lambda: store.put("new/a", io.BytesIO(b"a"), size_bytes=1),
        lambda: store.replace("old", b"b", expected_tag="x"),
        lambda: store.delete("new/a"),
        lambda: list(store.list("")),
    ]
    for use in uses:
        with pytest.raises(TransientError, match="syncing"):
            use()


def test_once_the_name_could_be_synced_it_counts(disk: VolatileDisk, store: DirectoryStore, tmp_path: Path) -> None:
    store.create("old", b"0")
    disk.fails = directories
    with pytest.raises(UnknownOutcome):
        store.create("new/deep/a", b"a")
    disk.fails = lambda _: False
    with pytest.raises(AlreadyExists):
        store.create("new/deep/a", b"a")
    assert store.get("new/deep/a")[0] == b"a"
    store.create("new/deep/b", b"b")
    after = after_power_loss(disk, tmp_path)
    assert after.get("new/deep/b")[0] == b"b"
    assert after.get("new/deep/a")[0] == b"a"


def test_a_directory_that_another_call_made_and_could_not_sync_is_synced_with_what_is_put_into_it(
    disk: VolatileDisk, store: DirectoryStore, tmp_path: Path
) -> None:
    store.create("old", b"0")
    disk.fails = lambda path: path.name == "bucket"
    with pytest.raises(UnknownOutcome):
        store.create("new/a", b"a")
    disk.fails = lambda _: False
    store.create("new/b", b"b")
    assert after_power_loss(disk, tmp_path).get("new/b")[0] == b"b"


def test_a_name_that_cannot_be_synced_while_an_earlier_failure_is_made_good_stays_in_doubt(
    disk: VolatileDisk, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create("old", b"0")
    disk.fails = directories
    with pytest.raises(UnknownOutcome):
        store.create("a", b"a")

    def fails_again_behind(directory: Path) -> None:
        monkeypatch.undo()
        disk.fails = lambda _: False
        durable_names.sync_names(directory)
        disk.fails = directories
        with pytest.raises(UnknownOutcome):
            store._names.settle("b", disk.root / "mnt" / "bucket")

    monkeypatch.setattr(durable_names, "sync_names", fails_again_behind)
    assert store.get("a")[0] == b"a"
    with pytest.raises(TransientError, match="syncing"):
        store.get("a")


def test_what_is_read_back_survives_though_a_directory_halfway_up_could_not_be_synced(
    disk: VolatileDisk, store: DirectoryStore, tmp_path: Path
) -> None:
    store.create("old", b"0")
    disk.fails = lambda path: path.name == "new"
    with pytest.raises(UnknownOutcome):
        store.create("new/deep/a", b"a")
    disk.fails = lambda _: False
    assert store.get("new/deep/a")[0] == b"a"
    assert after_power_loss(disk, tmp_path).get("new/deep/a")[0] == b"a"


def test_a_file_that_could_not_be_synced_is_written_again_and_never_published(
    disk: VolatileDisk, store: DirectoryStore, tmp_path: Path
) -> None:
    store.create("old", b"0")
    disk.fails = lambda path: path.is_file()
    with pytest.raises(TransientError, match="Input/output error"):
        store.put("a", io.BytesIO(b"a"), size_bytes=1)
    disk.fails = lambda _: False
    assert [info.key for info in store.list("")] == ["old"]
    store.put("a", io.BytesIO(b"a"), size_bytes=1)
    assert after_power_loss(disk, tmp_path).get("a")[0] == b"a"


def test_an_archive_that_could_not_be_made_is_made_durable_before_its_first_object(
    disk: VolatileDisk, store: DirectoryStore, tmp_path: Path
) -> None:
    disk.fails = lambda path: path == disk.root
    with pytest.raises(TransientError):
        store.create("a", b"a")
    disk.fails = lambda _: False
    store.create("a", b"a")
    assert after_power_loss(disk, tmp_path).get("a")[0] == b"a"


def test_names_that_many_threads_make_at_once_survive(disk: VolatileDisk, store: DirectoryStore, tmp_path: Path) -> None:
    store.create("old", b"0")
    barrier = threading.Barrier(8)

    def write(number: int) -> None:
        for turn in range(20):
            barrier.wait()
            store.create(f"turn-{turn}/deep/{number}", b"x")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(after_power_loss(disk, tmp_path).list("turn"))) == 160


def test_nothing_local_is_released_for_an_archive_that_is_not_on_disk(disk: VolatileDisk, store: DirectoryStore, tmp_path: Path) -> None:
    log = Directory(tmp_path / "logs")
    for base in (0, 10, 20):
        log.segment(base, a_segment(base, 10))
    log.high_watermark(30)
    store.create("warm.up", b"x")
    agent = Agent(log.root, store=store)
    disk.fails = directories

    def archive_and_release() -> None:
        for _ in range(10):
            try:
                agent.run()
                agent.releaser.release(agent.archiver)
            except HeadwaterError:
                continue

    archive_and_release()
    assert disk.failed > 0
    assert len(list(log.path.glob("*.log"))) == 3
    disk.fails = lambda _: False
    archive_and_release()
    after = after_power_loss(disk, tmp_path)
    assert len(list(log.path.glob("*.log"))) == 1
    assert ManifestRepository(after).load(agent.partition) is not None
    head = load(after, agent.partition)
    assert head.last_offset == 29
    for entry in head.entries:
        assert after.stat(entry.key).digest == entry.digest
