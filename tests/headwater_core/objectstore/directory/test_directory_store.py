import errno
import fcntl
import io
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import structlog

from headwater_core.errors import AlreadyExists, Conflict, DiskFull, NotFound, Unauthorised, UsageError
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.directory import DirectoryStore, directory_store
from headwater_core.objectstore.store import ObjectForm, ObjectStore, UnfinishedUpload
from tests.headwater_core.objectstore.contract import ObjectStoreContract, put

PROCESSES = 4
TURNS = 25


class TestDirectoryStore(ObjectStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        store = DirectoryStore(tmp_path / "archive")
        store.create("x", b"")  # a directory that is not there is no store
        store.delete("x")
        return store


def test_the_first_write_makes_the_directory(tmp_path: Path) -> None:
    root = tmp_path / "var" / "archive"
    DirectoryStore(root).create("meta/a.json", b"{}")
    assert (root / "meta" / "a.json").read_bytes() == b"{}"


def test_a_missing_directory_does_not_look_like_an_empty_archive(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "unmounted")
    for use in (lambda: store.get("a"), lambda: store.stat("a"), lambda: list(store.list("")), lambda: store.delete("a")):
        with pytest.raises(UsageError, match="no archive at"):
            use()
    assert not (tmp_path / "unmounted").exists()


def test_partial_files_of_killed_writers_are_unfinished_and_those_of_living_ones_are_not(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    put(store, "a", b"")
    dead, living, new = (tmp_path / "+partial" / name for name in ("dead", "living", "new"))
    for path in (dead, living, new):
        path.write_bytes(b"half")
    for path in (dead, living):
        os.utime(path, (1_000, 1_000))
    with living.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert list(store.unfinished("data/")) == [UnfinishedUpload("", "dead", 1_000_000)]
        for path in (dead, living):
            store.abort(UnfinishedUpload("", path.name, 1_000_000))
        store.abort(UnfinishedUpload("", "gone", 1_000_000))
        assert sorted(path.name for path in (tmp_path / "+partial").iterdir()) == ["living", "new"]
    with pytest.raises(UsageError):
        store.abort(UnfinishedUpload("", "../a", 1_000_000))


def test_a_key_below_an_object_is_refused_in_words(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    put(store, "a", b"")
    put(store, "b/c", b"")
    with pytest.raises(UsageError):
        put(store, "a/x", b"")
    with pytest.raises(UsageError):
        put(store, "b", b"")
    with pytest.raises(NotFound):
        store.get("b")
    with pytest.raises(NotFound):
        store.get("a/x")


def test_a_listing_is_in_key_order_across_folders(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    keys = ["a", "a-b/x", "a.b", "a0/x", "a=/y/z", "b/c/d", "b/c/e", "b/c.x", "b/cc", "z_"]
    for key in keys:
        put(store, key, b"")
    assert [info.key for info in store.list("")] == sorted(keys)
    for start_after in ["0", *keys, "a-b", "b/c", "b/c/dd", "b/zz", "zz"]:
        assert [info.key for info in store.list("", start_after=start_after)] == [key for key in sorted(keys) if key > start_after]


def test_a_listing_shows_objects_only(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    tag = store.create("a", b"1")
    store.replace("a", b"2", expected_tag=tag)
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "copy.tmp~").write_bytes(b"")
    assert [info.key for info in store.list("")] == ["a"]
    assert sorted(os.listdir(tmp_path / "+partial")) == []


def test_empty_directories_go_with_their_last_object(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    put(store, "a/b/c/1", b"")
    put(store, "a/2", b"")
    store.delete("a/b/c/1")
    assert os.listdir(tmp_path / "a") == ["2"]
    store.delete("a/2")
    assert not (tmp_path / "a").exists()


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DirectoryStore(tmp_path)
    tag = store.create("doc", b"1")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(DiskFull):
            put(store, "a", b"data")
        with pytest.raises(DiskFull):
            store.replace("doc", b"2", expected_tag=tag)
    assert [info.key for info in store.list("")] == ["doc"]
    assert store.get("doc") == (b"1", tag)
    assert os.listdir(tmp_path / "+partial") == []


def test_a_place_that_may_not_be_written_is_unauthorised() -> None:
    with pytest.raises(Unauthorised):
        DirectoryStore("/sys/headwater").create("a", b"")


def test_a_killed_writer_s_file_is_removed_once_it_is_old(tmp_path: Path) -> None:
    put(DirectoryStore(tmp_path), "a", b"")
    for name in ("young", "old", "written-still"):
        (tmp_path / "+partial" / name).write_bytes(b"half")
        if name != "young":
            os.utime(tmp_path / "+partial" / name, (0, 0))
    with (tmp_path / "+partial" / "written-still").open("rb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        put(DirectoryStore(tmp_path), "b", b"")
        assert sorted(os.listdir(tmp_path / "+partial")) == ["written-still", "young"]


_WRITER = """
import io, sys, tests.kill_at
from headwater_core.objectstore.directory import DirectoryStore, directory_store
store = DirectoryStore(sys.argv[1])
if sys.argv[2] == "put":
    store.put("data/a", io.BytesIO(b"whole"), size_bytes=5)
else:
    store.replace("doc", b"new", expected_tag=store.get("doc")[1])
"""


@pytest.mark.parametrize("verb", ["put", "replace"])
@pytest.mark.parametrize("step", ["directory.written", "directory.named"])
def test_kill_9_leaves_all_or_nothing(tmp_path: Path, verb: str, step: str) -> None:
    store = DirectoryStore(tmp_path)
    store.create("doc", b"old")
    environ = {**os.environ, "KILL_AT": step}
    killed = subprocess.run([sys.executable, "-c", _WRITER, str(tmp_path), verb], env=environ, check=False)
    assert killed.returncode == -signal.SIGKILL
    after = DirectoryStore(tmp_path)
    happened = step == "directory.named"
    if verb == "replace":
        document, tag = after.get("doc")
        assert document == (b"new" if happened else b"old")
        after.replace("doc", b"next", expected_tag=tag)  # the lock died with its holder
    elif happened:
        assert after.stat("data/a").digest == digest_of(b"whole")
    else:
        assert [info.key for info in after.list("")] == ["doc"]
        put(after, "data/a", b"whole")


def _add_up(root: str, number: int) -> list[str]:
    """Raise a shared counter TURNS times by compare-and-swap; return the keys this process was first to create."""
    store = DirectoryStore(root)
    created = []
    for turn in range(TURNS):
        try:
            content = b"%d" % number * 10_000
            store.put(f"race/{turn}/object", io.BytesIO(content), size_bytes=len(content))
            created.append(f"race/{turn}/object")
        except AlreadyExists:
            pass
        while True:
            document, tag = store.get("counter")
            try:
                store.replace("counter", b"%d" % (int(document) + 1), expected_tag=tag)
                break
            except Conflict:
                continue
    return created


def test_processes_race_without_losing_anything(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    store.create("counter", b"0")
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        created = pool.starmap(_add_up, [(str(tmp_path), number) for number in range(PROCESSES)])
    assert store.get("counter")[0] == b"%d" % (PROCESSES * TURNS)
    assert sorted(key for keys in created for key in keys) == sorted(f"race/{turn}/object" for turn in range(TURNS))
    for number, keys in enumerate(created):
        for key in keys:
            assert store.get(key)[0] == b"%d" % number * 10_000


def test_a_root_that_went_away_is_not_made_again(tmp_path: Path) -> None:
    """As when its disk is unmounted under a running agent: the next write must not begin an empty archive there."""
    store = DirectoryStore(tmp_path / "archive")
    store.create("a", b"1")
    (tmp_path / "archive").rename(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="no such directory"):
        store.create("b", b"2")
    assert not (tmp_path / "archive").exists()


def test_attributes_that_fail_fail_no_write_and_no_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the error: a security module, a share or a full inode has errors of its own."""

    def refused(*_: object) -> None:
        raise OSError(errno.EACCES, "no")

    monkeypatch.setattr(directory_store, "_warned", threading.Event())
    for name in ("setxattr", "listxattr", "getxattr"):
        monkeypatch.setattr(os, name, refused)
    store, buffer = DirectoryStore(tmp_path), bytearray(4)
    with structlog.testing.capture_logs() as logged:
        for key in ("a", "b"):
            store.put(key, io.BytesIO(b"data"), size_bytes=4, form=ObjectForm(metadata={"x": "y"}))
            assert dict(store.read_into(key, memoryview(buffer), start=0)) == {}
            assert buffer == b"data"
    assert [each["event"] for each in logged] == ["user_metadata_failed"]


def test_attributes_are_read_where_somebody_looks_at_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DirectoryStore(tmp_path)
    listed: list[object] = []

    def listing(path: object) -> list[str]:
        listed.append(path)
        return []

    store.put("a", io.BytesIO(b"data"), size_bytes=4, form=ObjectForm(metadata={"x": "y"}))
    monkeypatch.setattr(os, "listxattr", listing)
    metadata = store.read_into("a", memoryview(bytearray(4)), start=0)
    assert listed == []
    assert metadata.get("x") is None
    assert len(listed) == 1


def test_what_holds_credentials_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    before = os.umask(0)
    try:
        for prefix in ("cluster", "data"):
            store.put(f"{prefix}/object", io.BytesIO(b"1"), size_bytes=1)
            tag = store.create(f"{prefix}/document", b"1")
            store.replace(f"{prefix}/document", b"2", expected_tag=tag)
            store.create(f"{prefix}/created", b"1")
    finally:
        os.umask(before)
    modes = {path.relative_to(tmp_path).as_posix(): path.stat().st_mode & 0o777 for path in tmp_path.glob("*/*") if path.is_file()}
    assert modes == {
        f"{prefix}/{name}": mode for prefix, mode in (("cluster", 0o600), ("data", 0o666)) for name in ("object", "document", "created")
    }
