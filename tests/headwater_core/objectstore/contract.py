"""What every ObjectStore does. A subclass supplies the `store` fixture, a new and empty one each time."""

import io
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic

import pytest

from headwater_core.errors import AlreadyExists, Conflict, CorruptData, NotFound, SourceChanged, TruncatedData, UploadStopped, UsageError
from headwater_core.objectstore.confirmed_put import complete_confirmed
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.paced_file import PacedFile
from headwater_core.objectstore.store import NewObject, ObjectForm, ObjectRange, ObjectStore

RACERS = 8
_MIB = 1 << 20
PART_BYTES = 5 << 20  # what every store takes for a part


def put(store: ObjectStore, key: str, content: bytes) -> str:
    return store.put(key, io.BytesIO(content), size_bytes=len(content))


def check_that_a_pace_ends_a_put(store: ObjectStore, path: Path, size_bytes: int) -> None:
    """And that what it lets go is what there is."""
    path.write_bytes(bytes(range(256)) * (size_bytes // 256))
    passed: list[int] = []
    one_by_one = threading.Lock()

    def refuse(piece_bytes: int) -> None:
        with one_by_one:
            if sum(passed) + piece_bytes >= size_bytes:
                raise UploadStopped("enough")
            passed.append(piece_bytes)

    with path.open("rb", buffering=0) as file:
        began_s = monotonic()
        with pytest.raises(UploadStopped, match="enough"):
            store.put("a", PacedFile(file, refuse), size_bytes=size_bytes)
        assert monotonic() < began_s + 10, "it was tried again"
        with pytest.raises(NotFound):
            store.stat("a")
        assert list(store.list("")) == []
        file.seek(0)
        passed.clear()
        assert store.put("a", PacedFile(file, passed.append), size_bytes=size_bytes) == digest_of(path.read_bytes())
        assert sum(passed) == size_bytes


class PartsOf(io.BytesIO):
    """A source that can be read in several places at once."""

    pace = staticmethod(lambda size_bytes: None)

    def part_pieces(self, start: int) -> Iterator[memoryview]:
        """All in one buffer, which each uses again."""
        content, space = self.getbuffer(), memoryview(bytearray(100_000))
        for at in range(start, len(content), len(space)):
            piece = content[at : at + len(space)]
            space[: len(piece)] = piece
            yield space[: len(piece)]


def read(store: ObjectStore, key: str, start: int, size_bytes: int) -> bytes:
    buffer = bytearray(size_bytes)
    store.read_into(key, memoryview(buffer), start=start)
    return bytes(buffer)


def race(attempt: Callable[[int], object], *refusals: type[Exception]) -> list[int]:
    """Let RACERS threads do `attempt(number)` at once; return the numbers of those that were not refused."""
    barrier = threading.Barrier(RACERS)
    winners: list[int] = []
    surprises: list[BaseException] = []

    def run(number: int) -> None:
        barrier.wait()
        try:
            attempt(number)
            winners.append(number)
        except refusals:
            pass
        except BaseException as error:
            surprises.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(RACERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert surprises == []
    return winners


class ObjectStoreContract:
    races = 10  # per racing test

    # Objects

    def test_what_was_put_reads_back(self, store: ObjectStore) -> None:
        assert put(store, "data/a.log", b"0123456789") == digest_of(b"0123456789")
        assert read(store, "data/a.log", 0, 10) == b"0123456789"
        assert store.get("data/a.log")[0] == b"0123456789"

    def test_what_was_put_together_reads_back_one_by_one(self, store: ObjectStore) -> None:
        contents = {"data/b/b.log": b"bb", "data/b/a.log": b"a", "data/c.log": bytes(3_000_000)}
        digests = store.put_all([NewObject(key, io.BytesIO(content), len(content)) for key, content in contents.items()])
        assert digests == [digest_of(content) for content in contents.values()]
        assert {info.key: store.get(info.key)[0] for info in store.list("data/")} == contents
        assert store.put_all([]) == []

    def test_of_those_put_together_one_that_is_taken_stays_what_it_was(self, store: ObjectStore) -> None:
        put(store, "b", b"old")
        with pytest.raises(AlreadyExists):
            store.put_all([NewObject(key, io.BytesIO(b"new"), 3) for key in "abc"])
        assert store.get("b")[0] == b"old"
        with pytest.raises(NotFound):
            store.stat("c")

    def test_a_range_reads_only_that_range(self, store: ObjectStore) -> None:
        put(store, "a", b"0123456789")
        buffer = bytearray(b"......")
        store.read_into("a", memoryview(buffer)[1:5], start=3)
        assert bytes(buffer) == b".3456."

    def test_a_range_of_nothing_reads_nothing(self, store: ObjectStore) -> None:
        put(store, "a", b"0123")
        store.read_into("a", memoryview(bytearray()), start=2)

    def test_a_range_past_the_end_is_truncated_data(self, store: ObjectStore) -> None:
        put(store, "a", b"0123456789")
        for start, size_bytes in [(0, 11), (5, 6), (9, 2), (10, 1), (1000, 1)]:
            with pytest.raises(TruncatedData):
                read(store, "a", start, size_bytes)

    def test_a_stream_fills_buffers_that_follow_each_other(self, store: ObjectStore) -> None:
        content = bytes(range(256)) * 4000
        put(store, "a", content)
        buffers = [memoryview(bytearray(size)) for size in (300_000, 1, 100_000, 77)]
        at = 1000
        for buffer, _ in zip(buffers, store.stream_into("a", buffers, start=at), strict=True):
            assert buffer == content[at : at + len(buffer)]
            at += len(buffer)

    def test_a_stream_may_be_left_and_the_store_used_again(self, store: ObjectStore) -> None:
        put(store, "a", bytes(3_000_000))
        for _ in range(40):  # more often than there are connections
            streaming = store.stream_into("a", [memoryview(bytearray(1000)), memoryview(bytearray(2_000_000))], start=0)
            next(streaming)
            streaming.close()
        assert read(store, "a", 0, 10) == bytes(10)

    def test_a_stream_past_the_end_or_of_nothing_that_is_there_is_an_error(self, store: ObjectStore) -> None:
        put(store, "a", b"0123456789")
        with pytest.raises(TruncatedData):
            list(store.stream_into("a", [memoryview(bytearray(5)), memoryview(bytearray(6))], start=0))
        with pytest.raises(NotFound):
            list(store.stream_into("b", [memoryview(bytearray(5))], start=0))

    def test_an_empty_object_is_an_object(self, store: ObjectStore) -> None:
        assert put(store, "empty", b"") == digest_of(b"")
        assert store.stat("empty").size_bytes == 0
        assert store.get("empty")[0] == b""
        with pytest.raises(TruncatedData):
            read(store, "empty", 0, 1)

    def test_a_put_takes_its_bytes_from_the_current_position_of_a_file(self, store: ObjectStore, tmp_path: Path) -> None:
        content = bytes(range(256)) * 5000
        (tmp_path / "segment.log").write_bytes(content)
        with (tmp_path / "segment.log").open("rb") as file:
            file.read(1000)
            digest = store.put("part", file, size_bytes=600_000)
        assert digest == digest_of(content[1000:601_000])
        assert read(store, "part", 0, 600_000) == content[1000:601_000]

    def test_user_metadata_is_kept_with_an_object(self, store: ObjectStore) -> None:
        metadata = {"headwater-partition": "orders:3", "written-by": "~ somebody !"}
        store.put("a", io.BytesIO(b"0123456789"), size_bytes=10, form=ObjectForm(metadata=metadata))
        assert store.read_into("a", memoryview(bytearray(2)), start=3) == metadata
        put(store, "b", b"0123456789")
        assert store.read_into("b", memoryview(bytearray(2)), start=3) == {}

    def test_metadata_that_not_every_store_takes_is_refused(self) -> None:
        for metadata in ({"Upper": "x"}, {"a": "line\n"}, {"a": "\u00e9"}, {"a": "x" * 2048}, {"": "x"}):
            with pytest.raises(UsageError):
                ObjectForm(metadata=metadata)

    @pytest.mark.parametrize("cuts", [(100,), (5 << 20, 70_000), (5 << 20, 6 << 20, 1)])
    def test_an_object_may_be_sent_in_parts_of_the_callers_choice(self, store: ObjectStore, cuts: tuple[int, ...]) -> None:
        assert store.part_bytes_min <= 5 << 20
        content = (bytes(range(255)) * (sum(cuts) // 255 + 1))[: sum(cuts)]
        form = ObjectForm(metadata={"a": "b"}, parts=cuts)
        for key, source in (("stream", io.BytesIO(content)), ("parts", PartsOf(content))):
            assert store.put(key, source, size_bytes=len(content), form=form) == digest_of(content)
            buffer = memoryview(bytearray(len(content)))
            assert store.read_into(key, buffer, start=0) == {"a": "b"}
            assert buffer == content

    def test_a_part_that_changes_while_it_is_sent_creates_nothing(self, store: ObjectStore) -> None:
        content = bytes(5 << 20) + b"the end"

        class Changing(PartsOf):
            begun = 0

            def part_pieces(self, start: int) -> Iterator[memoryview]:
                if start:
                    self.begun += 1
                    self.getbuffer()[-1] = self.begun
                return super().part_pieces(start)

        try:
            digest = store.put("a", Changing(content), size_bytes=len(content), form=ObjectForm(parts=(5 << 20, 7)))
        except SourceChanged:
            assert list(store.list("")) == []
        else:
            assert digest == digest_of(store.get("a", max_bytes=len(content))[0])  # of what was sent: for the caller to compare

    def test_a_put_takes_its_bytes_from_a_stream_that_gives_little_at_a_time(self, store: ObjectStore) -> None:
        class Trickle(io.BytesIO):
            def read(self, size: int | None = -1) -> bytes:
                return super().read(min(size, 7) if size is not None and size >= 0 else 7)

        assert store.put("a", Trickle(bytes(100)), size_bytes=100) == digest_of(bytes(100))
        assert store.stat("a").size_bytes == 100

    @pytest.mark.parametrize("kind", ["stream", "file"])
    def test_a_source_that_ends_early_creates_nothing(self, store: ObjectStore, tmp_path: Path, kind: str) -> None:
        (tmp_path / "short").write_bytes(b"short")
        with (tmp_path / "short").open("rb") if kind == "file" else io.BytesIO(b"short") as source, pytest.raises(SourceChanged):
            store.put("a", source, size_bytes=6)
        with pytest.raises(NotFound):
            store.stat("a")
        assert list(store.list("")) == []

    def test_a_put_that_its_pace_ends_creates_nothing_and_ends_at_once(self, store: ObjectStore, tmp_path: Path) -> None:
        check_that_a_pace_ends_a_put(store, tmp_path / "large", 3 << 20)

    def test_a_key_is_written_once(self, store: ObjectStore) -> None:
        put(store, "a", b"first")
        with pytest.raises(AlreadyExists):
            put(store, "a", b"second")
        with pytest.raises(AlreadyExists):
            store.create("a", b"second")
        assert store.get("a")[0] == b"first"

    def test_one_of_many_puts_wins_and_its_bytes_are_there(self, store: ObjectStore) -> None:
        for turn in range(self.races):
            key = f"race/{turn}"
            [winner] = race(lambda number, key=key: put(store, key, b"%d" % number * 1000), AlreadyExists)  # type: ignore[misc]
            assert store.get(key)[0] == b"%d" % winner * 1000

    def test_stat_tells_length_and_digest(self, store: ObjectStore) -> None:
        put(store, "meta/a", b"123456789")
        info = store.stat("meta/a")
        assert (info.key, info.size_bytes, info.digest) == ("meta/a", 9, "crc64nvme:ae8b14860a799888")
        assert info.modified_ms > 1_500_000_000_000

    def test_what_is_not_there_is_not_found(self, store: ObjectStore) -> None:
        put(store, "a/bc", b"x")
        uses: list[Callable[[], object]] = [lambda: store.get("a/b"), lambda: store.stat("a/b"), lambda: read(store, "a/b", 0, 1)]
        for use in uses:
            with pytest.raises(NotFound):
                use()

    # Objects made of others

    def test_ranges_of_others_become_one_object(self, store: ObjectStore) -> None:
        contents = {name: name.encode() * 6 * _MIB for name in "ab"} | {"c": b"0123456789"}
        for key, content in contents.items():
            put(store, key, content)
        for cuts in (
            [("c", 2, 3)],
            [("c", 2, 3), ("c", 0, 10), ("c", 9, 0)],
            [("a", 0, 6 * _MIB), ("b", 0, 6 * _MIB), ("c", 0, 10)],
            [("c", 0, 10), ("a", 3, 6 * _MIB - 3), ("c", 1, 1), ("b", 0, 100)],
        ):
            whole = b"".join(contents[key][start : start + size_bytes] for key, start, size_bytes in cuts)
            store.join("joined", [ObjectRange(*cut) for cut in cuts], digest=digest_of(whole))
            assert store.stat("joined").size_bytes == len(whole)
            assert read(store, "joined", 0, len(whole)) == whole
            assert store.stat("joined").digest in (None, digest_of(whole))
            assert list(store.unfinished("")) == []
            store.delete("joined")

    @pytest.mark.parametrize("size_bytes", [10, 12 << 20])
    def test_what_is_joined_overwrites_nothing_and_has_to_be_there(self, store: ObjectStore, size_bytes: int) -> None:
        content = bytes(range(250)) * (size_bytes // 250) + b"!" * (size_bytes % 250)
        put(store, "a", content)
        put(store, "taken", b"first")
        whole = [ObjectRange("a", 0, size_bytes)]
        with pytest.raises(AlreadyExists):
            store.join("taken", whole, digest=digest_of(content))
        with pytest.raises(NotFound):
            store.join("b", [*whole, ObjectRange("absent", 0, size_bytes)], digest=digest_of(content * 2))
        with pytest.raises(CorruptData):
            store.join("b", whole, digest=digest_of(content[:-1] + b"?"))
        with pytest.raises((CorruptData, UsageError)):
            store.join("b", [ObjectRange("a", 5, size_bytes)], digest=digest_of(content[5:] + bytes(5)))

        def stop(_: int) -> None:
            raise UploadStopped("the agent ends")

        with pytest.raises(UploadStopped):
            store.join("b", whole, digest=digest_of(content), pace=stop)
        assert store.get("taken")[0] == b"first"
        assert sorted(info.key for info in store.list("")) == ["a", "taken"]
        assert list(store.unfinished("")) == []

    # Documents

    def test_a_document_has_a_tag(self, store: ObjectStore) -> None:
        tag = store.create("doc.json", b"{}")
        assert store.get("doc.json") == (b"{}", tag)
        assert store.stat("doc.json").tag == tag
        assert store.stat("doc.json").digest == digest_of(b"{}")

    def test_a_replacement_names_the_tag_it_replaces(self, store: ObjectStore) -> None:
        first = store.create("doc", b"1")
        second = store.replace("doc", b"2", expected_tag=first)
        assert second != first
        assert store.get("doc") == (b"2", second)
        with pytest.raises(Conflict):
            store.replace("doc", b"3", expected_tag=first)
        assert store.get("doc") == (b"2", second)

    def test_what_is_gone_is_not_replaced(self, store: ObjectStore) -> None:
        tag = store.create("doc", b"1")
        store.delete("doc")
        with pytest.raises(Conflict):
            store.replace("doc", b"2", expected_tag=tag)
        with pytest.raises(NotFound):
            store.get("doc")

    def test_one_of_many_creations_wins(self, store: ObjectStore) -> None:
        for turn in range(self.races):
            key = f"doc/{turn}"
            [winner] = race(lambda number, key=key: store.create(key, b"%d" % number), AlreadyExists)  # type: ignore[misc]
            assert store.get(key)[0] == b"%d" % winner

    def test_one_of_many_replacements_wins(self, store: ObjectStore) -> None:
        tag = store.create("doc", b"first")
        for _ in range(self.races):
            [winner] = race(lambda number, tag=tag: store.replace("doc", tag.encode() + b"%d" % number, expected_tag=tag), Conflict)  # type: ignore[misc]
            document, new = store.get("doc")
            assert document == tag.encode() + b"%d" % winner
            tag = new

    def test_a_document_larger_than_its_reader_allows_is_refused(self, store: ObjectStore) -> None:
        store.create("doc", bytes(100))
        assert len(store.get("doc", max_bytes=100)[0]) == 100
        with pytest.raises(CorruptData):
            store.get("doc", max_bytes=99)

    # Listing and deleting

    def test_a_listing_of_one_folder_is_in_key_order(self, store: ObjectStore) -> None:
        keys = ["f/0", "f/A", "f/a", "f/a-b", "f/a.b", "f/a0", "f/a_", "f/b", "f/z=1"]
        for key in reversed(keys):
            put(store, key, key.encode() * 2)
        assert [info.key for info in store.list("f/")] == sorted(keys)
        assert [info.size_bytes for info in store.list("f/")] == [2 * len(key) for key in sorted(keys)]

    def test_a_listing_shows_every_object_once(self, store: ObjectStore) -> None:
        keys = ["a", "a-b/x", "a.b", "a0/x", "a=/y/z", "b/c/d", "b/c/e", "b/c.x", "b/cc", "z_"]
        for key in keys:
            put(store, key, b"")
        assert sorted(info.key for info in store.list("")) == sorted(keys)

    def test_a_prefix_need_not_end_at_a_slash(self, store: ObjectStore) -> None:
        keys = ["a", "b/c", "b/d/1", "b/d/2", "ba", "c"]
        for key in keys:
            put(store, key, b"")
        for prefix in ("", "b", "b/", "b/c", "b/c/", "b/d", "b/d/", "b/d/2", "x", "x/y"):
            assert sorted(info.key for info in store.list(prefix)) == [key for key in keys if key.startswith(prefix)]

    def test_a_listing_continues_after_any_key_it_gave(self, store: ObjectStore) -> None:
        for key in ["a", "b/c/1", "b/c/2", "b/c/3", "b/d", "b/e/1", "c"]:
            put(store, key, b"")
        whole = [info.key for info in store.list("b/")]
        assert len(whole) == 5
        for at, key in enumerate(whole):
            assert [info.key for info in store.list("b/", start_after=key)] == whole[at + 1 :]

    def test_a_listing_continues_after_a_name_that_is_not_there(self, store: ObjectStore) -> None:
        for key in ["a", "b/c/1", "b/c/2", "b/d", "b/e/1", "c"]:
            put(store, key, b"")
        for name, left in (("b/a", 4), ("b/c/0", 4), ("b/c/1z", 3), ("b/c/z", 2), ("b/cz", 2), ("b/dz/1", 1), ("b/e/z", 0), ("b/z", 0)):
            found = [info.key for info in store.list("b/", start_after=name)]
            assert found == ["b/c/1", "b/c/2", "b/d", "b/e/1"][4 - left :], name

    def test_what_was_deleted_is_gone_and_may_be_made_again(self, store: ObjectStore) -> None:
        put(store, "a/b/c", b"1")
        put(store, "a/d", b"2")
        store.delete("a/b/c")
        assert [info.key for info in store.list("")] == ["a/d"]
        with pytest.raises(NotFound):
            store.stat("a/b/c")
        put(store, "a/b/c", b"3")
        assert store.get("a/b/c")[0] == b"3"

    def test_deleting_what_is_not_there_is_silent(self, store: ObjectStore) -> None:
        put(store, "a/b", b"")
        store.delete("a/c")
        store.delete("a/b/c")
        store.delete("a/b")
        store.delete("a/b")

    # Uploads that their process did not live to finish

    def test_what_was_finished_or_failed_is_not_unfinished(self, store: ObjectStore) -> None:
        put(store, "a", b"content")
        with pytest.raises(AlreadyExists):
            put(store, "a", b"content")
        with pytest.raises(SourceChanged):
            store.put("b", io.BytesIO(b"short"), size_bytes=6)
        assert list(store.unfinished("")) == []
        with pytest.raises(UsageError):
            list(store.unfinished("../"))

    # Objects that grow

    def test_an_object_that_grows_is_there_when_it_is_complete(self, store: ObjectStore) -> None:
        content = (bytes(range(255)) * 50_000)[: 2 * PART_BYTES + 70_000]
        first, second, rest = content[:PART_BYTES], content[PART_BYTES : 2 * PART_BYTES], content[2 * PART_BYTES :]
        growing = store.grow("stream/a", metadata={"a": "b"})
        assert growing.key == "stream/a"
        growing.send(2, second, start=PART_BYTES)  # in any order, and again
        growing.send(1, bytes(PART_BYTES), start=0)
        growing.send(1, memoryview(first), start=0)
        with pytest.raises(NotFound):
            store.stat("stream/a")
        assert list(store.list("")) == []
        assert growing.complete(rest) == digest_of(content)
        buffer = memoryview(bytearray(len(content)))
        assert store.read_into("stream/a", buffer, start=0) == {"a": "b"}
        assert buffer == content
        assert store.stat("stream/a").digest in (digest_of(content), None)
        assert list(store.unfinished("")) == []

    @pytest.mark.parametrize("parts", [0, 1])
    @pytest.mark.parametrize("rest", [b"", b"the end"])
    def test_an_object_may_grow_by_nothing_and_by_parts_alone(self, store: ObjectStore, parts: int, rest: bytes) -> None:
        content = bytes(PART_BYTES) * parts + rest
        growing = store.grow("a", metadata={"a": "b"})
        for number in range(1, parts + 1):
            growing.send(number, content[:PART_BYTES], start=0)
        assert growing.complete(rest) == digest_of(content)
        assert store.get("a")[0] == content

    def test_parts_may_be_sent_at_the_same_time(self, store: ObjectStore) -> None:
        parts = [bytes([number]) * PART_BYTES for number in range(RACERS)]
        growing = store.grow("a")
        race(lambda number: growing.send(number + 1, parts[number], start=number * PART_BYTES))
        assert growing.complete(b"") == digest_of(b"".join(parts))

    def test_what_grows_is_not_unfinished_while_its_writer_lives(self, store: ObjectStore) -> None:
        growing = store.grow("stream/a")
        growing.send(1, bytes(PART_BYTES), start=0)
        assert list(store.unfinished("")) == []
        growing.abort()
        growing.abort()
        assert list(store.unfinished("")) == []
        assert list(store.list("")) == []
        for use in (lambda: growing.send(1, bytes(PART_BYTES), start=0), lambda: growing.complete(b"rest")):
            with pytest.raises(NotFound):
                use()

    @pytest.mark.parametrize("parts", [0, 1])
    def test_an_object_that_grew_does_not_overwrite(self, store: ObjectStore, parts: int) -> None:
        growing = store.grow("a")
        for _ in range(parts):
            growing.send(1, bytes(PART_BYTES), start=0)
        put(store, "a", b"first")
        for _ in range(2):
            with pytest.raises((AlreadyExists, NotFound)):
                growing.complete(b"second")
        growing.abort()
        assert store.get("a")[0] == b"first"
        assert list(store.unfinished("")) == []

    def test_a_completion_that_failed_ends_with_the_same_bytes_or_none(self, store: ObjectStore) -> None:
        content = bytes(PART_BYTES) + b"rest"
        growing = store.grow("a")
        growing.send(1, content[:PART_BYTES], start=0)
        put(store, "a", b"another one's")
        with pytest.raises(AlreadyExists):
            growing.complete(b"rest")
        store.delete("a")
        try:
            assert growing.complete(b"rest") == digest_of(content)
        except NotFound:  # what was sent went with the refusal
            growing.abort()
            assert list(store.list("")) == []
        else:
            assert store.get("a", max_bytes=len(content))[0] == content

    def test_a_completion_that_is_repeated_is_recognised_and_another_ones_is_not(self, store: ObjectStore) -> None:
        content = bytes(PART_BYTES) + b"rest"
        growing = store.grow("a")
        growing.send(1, content[:PART_BYTES], start=0)
        for _ in range(2):
            complete_confirmed(growing, store, b"rest", len(content), digest_of(content))
        other = store.grow("a")
        with pytest.raises(SourceChanged):
            complete_confirmed(other, store, b"other", 5, digest_of(b"other"))
        aborted = store.grow("b")
        aborted.abort()
        with pytest.raises(NotFound):
            complete_confirmed(aborted, store, b"other", 5, digest_of(b"other"))

    def test_one_of_many_that_grow_under_a_key_wins(self, store: ObjectStore) -> None:
        for turn in range(self.races):
            key = f"race/{turn}"
            [winner] = race(lambda number, key=key: store.grow(key).complete(b"%d" % number * 1000), AlreadyExists)  # type: ignore[misc]
            assert store.get(key)[0] == b"%d" % winner * 1000

    # Keys come from documents and buckets

    def test_a_hostile_key_is_refused(self, store: ObjectStore) -> None:
        put(store, "a", b"")
        uses: list[Callable[[str], object]] = [
            lambda key: put(store, key, b"x"),
            lambda key: store.create(key, b"x"),
            lambda key: store.grow(key).complete(b"x"),
            lambda key: store.replace(key, b"x", expected_tag="0"),
            lambda key: store.get(key),
            lambda key: store.stat(key),
            lambda key: read(store, key, 0, 1),
            lambda key: store.delete(key),
        ]
        for key in ("", "/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", "a b", "a\x00", "a\n", "ä", "a\\b", "+lock", "x" * 1001):
            for use in uses:
                with pytest.raises(UsageError):
                    use(key)

    def test_a_hostile_prefix_is_refused(self, store: ObjectStore) -> None:
        put(store, "a", b"")
        for prefix in ("/", "../", "a/../", "a//", "ä", "a\x00"):
            with pytest.raises(UsageError):
                list(store.list(prefix))
