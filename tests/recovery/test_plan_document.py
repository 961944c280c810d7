"""Plans as documents: written and read entry by entry, and however somebody indents them."""

from io import BytesIO
from typing import Any, BinaryIO, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headwater_core.errors import CorruptData, UnsupportedFormat, UsageError
from manifests.document import seal_lines, unseal_body
from recovery import plan_document
from recovery.plan_document import LINE_BYTES_MAX, decode_plan, encode_plan, read_plan, write_plan
from recovery.recovery_plan import PartitionPlan, RecoveryPlan, RunningPlan
from tests.recovery.plans import a_head, a_topic, an_entry, planned


def a_plan(*counts: int) -> RecoveryPlan:
    """A plan of partitions with so many runs."""
    heads = [a_head(*(an_entry(at, at, partition=number) for at in range(count)), partition=number) for number, count in enumerate(counts)]
    return planned(a_topic(*heads))


@given(st.lists(st.sampled_from([0, 1, 2, 127, 128, 129]), min_size=1, max_size=4))
def test_a_plan_reads_back_and_is_sealed_as_every_document(counts: list[int]) -> None:
    plan = a_plan(*counts)
    raw = encode_plan(plan)
    sealed = read_plan(BytesIO(raw), "plan")
    assert sealed.plan == plan
    body = unseal_body(raw, "plan")  # the digest is that of the whole
    assert msgspec.json.decode(raw)["digest"] == sealed.digest
    assert body == msgspec.json.decode(msgspec.json.encode(plan, enc_hook=list))


@pytest.mark.parametrize("indent", [-1, 0, 2, 4])
def test_a_plan_that_is_indented_otherwise_is_the_same_plan(indent: int) -> None:
    plan = a_plan(3, 0, 200)
    raw = msgspec.json.format(encode_plan(plan), indent=indent)
    assert read_plan(BytesIO(raw), "plan") == read_plan(BytesIO(encode_plan(plan)), "plan")


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw.replace(b'},\n{"', b'},\n\n{"'),
        lambda raw: raw.replace(b"\n", b"\r\n"),
        lambda raw: raw.replace(b'},\n{"', b'},\n {"'),
    ],
    ids=["blank-lines", "other-line-ends", "indented-entries"],
)
def test_white_space_between_entries_is_none_of_the_plan(change: Any) -> None:
    raw = encode_plan(a_plan(200))
    assert change(raw) != raw
    assert decode_plan(change(raw)) == decode_plan(raw)


@pytest.mark.parametrize(
    "change",
    [lambda raw: raw.replace(b'},\n{"', b'}\n{"', 1), lambda raw: raw.replace(b"}\n     ]", b"},\n     ]", 1)],
    ids=["no-comma", "one-too-many"],
)
def test_what_is_no_json_is_no_plan(change: Any) -> None:
    with pytest.raises(CorruptData):
        decode_plan(change(encode_plan(a_plan(200))))


def test_a_document_of_endless_entries_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = encode_plan(a_plan(200))
    monkeypatch.setattr(plan_document, "ENTRIES_MAX", 199)
    with pytest.raises(CorruptData, match="more than 199 entries"):
        decode_plan(raw)


def test_each_entry_has_a_line_and_little_is_held_of_the_document() -> None:
    plan = a_plan(1000)
    lines = encode_plan(plan).splitlines()
    assert sum(line.startswith(b'{"') for line in lines) == 1000

    class Counting(BytesIO):
        most = 0

        def write(self, piece: Any, /) -> int:
            Counting.most = max(Counting.most, len(piece))
            return super().write(piece)

    write_plan(plan, Counting())
    assert Counting.most < 10_000


def test_every_flipped_bit_is_found() -> None:
    raw = encode_plan(a_plan(2, 1))
    for at in range(0, len(raw), 7):
        broken = bytearray(raw)
        broken[at] ^= 1 << at % 7
        try:
            found = decode_plan(bytes(broken))
        except (CorruptData, UnsupportedFormat):
            continue
        assert found == decode_plan(raw), at  # white space


def test_entries_that_are_swapped_between_lists_are_found() -> None:
    raw = encode_plan(a_plan(2, 2))
    lines = raw.splitlines(keepends=True)
    at = [number for number, line in enumerate(lines) if line.startswith(b'{"')]
    lines[at[0]], lines[at[2]] = lines[at[2]], lines[at[0]]
    with pytest.raises(CorruptData, match="digest"):
        decode_plan(b"".join(lines))


@pytest.mark.parametrize("cut", [2, 50, 500, 5000])
def test_a_plan_that_is_cut_short_is_damage(cut: int) -> None:
    with pytest.raises(CorruptData):
        decode_plan(encode_plan(a_plan(20))[:-cut])


def resealed(plan: RecoveryPlan, change: Any) -> bytes:
    body = msgspec.to_builtins(plan, enc_hook=list)
    change(body)
    return seal_lines(body, {})


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body["topics"][0]["partitions"][0].update(entries=[0]),
        lambda body: body["topics"][0]["partitions"][0].update(entries=7),
        lambda body: body["topics"][0]["partitions"][0].pop("partition"),
        lambda body: body.update(topics=3),
        lambda body: body["topics"][0]["partitions"][0]["entries"][0].update(base_offset=-1),
        lambda body: body["topics"][0]["partitions"][0]["entries"].reverse(),
    ],
    ids=["a-number-for-a-list", "no-list", "no-number", "no-topics", "a-negative-offset", "out-of-order"],
)
def test_a_sealed_document_that_is_no_plan_is_damage(change: Any) -> None:
    raw = resealed(a_plan(2, 1), change)
    for each in (raw, msgspec.json.format(raw, indent=1)):
        with pytest.raises(CorruptData):
            decode_plan(each)


def test_marks_for_lists_that_are_elsewhere_are_no_lists() -> None:
    """Whoever can seal can write anything, but not have one partition's runs taken for another's."""
    raw = encode_plan(a_plan(2, 0))
    for hostile in (raw.replace(b'"entries": []', b'"entries": [0]'), raw.replace(b'"entries": []', b'"entries": [1]')):
        with pytest.raises(CorruptData):
            decode_plan(hostile)


def test_names_that_look_like_lists_are_none() -> None:
    plan = a_plan(2)
    running = RunningPlan(grown={"entries": ((1, 2),)})
    odd = replace(plan, left_out=('     "entries": [\n', '"entries": []', "\0"), running=running)
    assert decode_plan(encode_plan(odd)) == odd


def test_a_version_to_come_says_so_and_what_it_adds_is_passed_over() -> None:
    plan = a_plan(2)

    def newer(body: Any) -> None:
        body["format"] = (1, 99)
        body["wish"] = {"entries": [1]}
        body["topics"][0]["partitions"][0]["entries"][0]["wish"] = 7

    raw = resealed(plan, newer)
    assert decode_plan(raw) == replace(plan, format=(1, 99))
    with pytest.raises(UnsupportedFormat, match="needs upgrade"):
        decode_plan(resealed(plan, lambda body: body.update(format=(2, 0))))


def test_what_an_entry_of_a_newer_version_says_more_is_under_the_digest() -> None:
    raw = encode_plan(a_plan(2)).replace(b'"records":1,', b'"records":1,"wish":7,', 1)
    with pytest.raises(CorruptData, match="digest"):
        decode_plan(raw)


def test_a_line_without_end_is_not_read_to_its_end() -> None:
    class Endless(BytesIO):
        given_bytes = 0

        def readline(self, size: int | None = -1, /) -> bytes:
            assert size is not None
            assert 0 < size <= LINE_BYTES_MAX
            Endless.given_bytes += size
            return b'     "entries": [\n' if Endless.given_bytes == size else b"[" * size

        def read(self, size: int | None = -1, /) -> bytes:
            return b"[" * 1000

    with pytest.raises(CorruptData):
        read_plan(cast(BinaryIO, Endless()), "plan")


def test_a_plan_too_large_for_what_reads_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = encode_plan(a_plan(2))
    monkeypatch.setattr(plan_document, "WHOLE_BYTES_MAX", 100)
    with pytest.raises(UsageError, match="fewer topics"):
        encode_plan(a_plan(2))
    with pytest.raises(CorruptData, match="more than 100 bytes"):
        decode_plan(raw)


def test_a_partition_that_has_its_runs_on_one_line_keeps_them() -> None:
    plan = a_plan(2, 3)
    lines = encode_plan(plan).decode().splitlines()
    first = next(at for at, line in enumerate(lines) if line == '     "entries": [')
    lines[first : first + 4] = ["".join(lines[first : first + 4])]
    found = decode_plan("\n".join(lines).encode())
    assert found == plan
    assert isinstance(found.topics[0].partitions[0], PartitionPlan)
