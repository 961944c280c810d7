"""What is pending stands in the head beside the entries, and a head that ever had some says so in its format."""

from itertools import count
from typing import Any

import msgspec
import pytest

from headwater_core.errors import CorruptData, NeedsUpgrade
from manifests import keys
from manifests.head import HEAD_FORMAT, Head, check_head, decode_head, encode_head, may_have_streams
from manifests.pending_list import FAILED, PENDING_MAX, PendingObject
from manifests.repository import ManifestRepository
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.manifests.builders import PARTITION, a_head, an_entry

STREAM = PendingObject(uid="a" * 32, fence=3, layout="streaming", base_offset=10, assigned_ms=5)


def a_streaming_entry(base: int, last: int, **fields: Any) -> Any:
    key = keys.data(PARTITION, base, last, 1, "b" * 32, "streaming")
    held = fields.pop("held", (base, last))
    return an_entry(base, last, uid="b" * 32, key=key, layout="streaming", held=held, **fields)


def test_what_is_pending_reads_back() -> None:
    failed = msgspec.structs.replace(STREAM, status=FAILED, failed_ms=9, last_offset=12, context={"parts": "3"})
    head = a_head(an_entry(0, 9), fence=4, pending=(STREAM, failed), format=HEAD_FORMAT)
    raw = encode_head(head)
    assert decode_head(raw, PARTITION) == head
    assert b"pending" not in encode_head(msgspec.structs.replace(head, pending=()))


@pytest.mark.parametrize(
    "wrong",
    [{"uid": "x"}, {"status": "offloaded"}, {"base_offset": -1}, {"last_offset": 9}, {"layout": ""}, {"fence": -1}],
    ids=str,
)
def test_nothing_impossible_is_pending(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="pending"):
        msgspec.structs.replace(STREAM, **wrong)


def test_nothing_is_pending_under_a_fence_that_nobody_has_taken() -> None:
    with pytest.raises(ValueError, match="pending"):
        a_head(fence=2, pending=(STREAM,))
    with pytest.raises(ValueError, match="pending"):
        a_head(fence=3, pending=(STREAM,) * (PENDING_MAX + 1))


def test_a_head_that_ever_had_something_pending_says_so_for_good() -> None:
    numbers = count()
    repository = ManifestRepository(MemoryStore(), new_id=lambda: f"{next(numbers):032x}")
    plain = repository.commit(None, a_head(an_entry(0, 9), fence=3))
    assert (plain.head.format, may_have_streams(plain.head)) == ((2, 1), False)
    pending = repository.commit(plain, msgspec.structs.replace(plain.head, pending=(STREAM,)))
    assert pending.head.format == (2, 2)
    after = repository.commit(pending, msgspec.structs.replace(pending.head, pending=()))
    assert (after.head.format, may_have_streams(after.head)) == ((2, 2), True)


def test_a_version_from_before_leaves_such_a_partition_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    repository = ManifestRepository(MemoryStore())
    held = repository.commit(None, a_head(an_entry(0, 9), fence=3, pending=(STREAM,)))
    monkeypatch.setattr("manifests.head.HEAD_FORMAT", (2, 1))
    with pytest.raises(NeedsUpgrade):
        repository.commit(held, held.head)


def test_an_entry_whose_key_says_no_offsets_says_what_its_object_held() -> None:
    whole = a_streaming_entry(0, 9)
    cut = a_streaming_entry(0, 9, held=(0, 20))
    assert (whole.held_offsets, cut.held_offsets) == ((0, 9), (0, 20))
    for entry in (whole, cut):
        assert decode_head(encode_head(a_head(entry)), PARTITION).entries[0] == entry
    assert b"held" not in whole.line
    assert b"stream/" not in whole.line


def test_such_an_entry_has_the_key_that_its_fence_and_uid_give() -> None:
    other = a_streaming_entry(0, 9)
    for wrong in ({"fence": 0}, {"uid": "c" * 32}, {"held": None}, {"index_key": other.key + "-index"}):
        head: Head = a_head(msgspec.structs.replace(other, **wrong))
        with pytest.raises(CorruptData, match="not a key"):
            check_head(head)
    with pytest.raises(ValueError, match="held"):
        a_streaming_entry(0, 9, held=(1, 9))
