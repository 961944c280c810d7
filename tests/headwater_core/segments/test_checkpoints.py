import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater_core.epochs import EpochHistory
from headwater_core.errors import CorruptData, UnsupportedFormat
from headwater_core.partition import TopicPartition
from headwater_core.segments import checkpoints
from headwater_core.segments.checkpoints import (
    MetaProperties,
    OffsetsDecoder,
    decode_epochs,
    decode_meta_properties,
    decode_offsets,
    decode_partition_metadata,
    encode_epochs,
    encode_meta_properties,
    encode_offsets,
    encode_partition_metadata,
)
from tests.fixtures import unpack

TOPIC_ID = "CiYnVEVES8C-QkPo0sT7kA"
topics = st.from_regex(r"[A-Za-z0-9._-]{1,20}", fullmatch=True).filter(lambda name: name not in (".", ".."))
partitions = st.builds(TopicPartition, topics, st.integers(0, 2**31 - 1))


@given(offsets=st.dictionaries(partitions, st.integers(0, 2**63 - 1), max_size=5))
def test_offsets_read_back(offsets: dict[TopicPartition, int]) -> None:
    assert decode_offsets(encode_offsets(offsets), where="test") == offsets


@given(states=st.lists(st.dictionaries(st.builds(TopicPartition, st.sampled_from("ab"), st.integers(0, 3)), st.integers(0, 3))))
def test_a_checkpoint_that_is_rewritten_is_decoded_as_if_it_were_new(states: list[dict[TopicPartition, int]]) -> None:
    decoder = OffsetsDecoder()
    decoded = [decoder.decode(encode_offsets(offsets), where="test") for offsets in states]
    assert decoded == states


def test_of_a_rewritten_checkpoint_the_changed_lines_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = {TopicPartition("soup", number): 0 for number in range(100)}
    decoder = OffsetsDecoder()
    decoder.decode(encode_offsets(offsets), where="test")
    read: list[str] = []
    parse = checkpoints._parse_offset

    def noted(line: str, where: str) -> tuple[TopicPartition, int]:
        read.append(line)
        return parse(line, where)

    monkeypatch.setattr(checkpoints, "_parse_offset", noted)
    after = {**offsets, TopicPartition("soup", 7): 5}
    assert decoder.decode(encode_offsets(after), where="test") == after
    assert sorted(read) == ["soup 7 0", "soup 7 5"]


@pytest.mark.parametrize("line", [b"soup 0 1", b"soup 0 2", b"soup 0", b"soup -1 2", b"soup 1 x"])
def test_a_damaged_line_is_found_in_a_rewritten_checkpoint_too(line: bytes) -> None:
    decoder = OffsetsDecoder()
    decoder.decode(b"0\n1\nsoup 0 1\n", where="test")
    with pytest.raises(CorruptData):
        decoder.decode(b"0\n2\nsoup 0 1\n" + line + b"\n", where="test")
    assert decoder.decode(b"0\n1\nsoup 0 3\n", where="test") == {TopicPartition("soup", 0): 3}


@given(epochs=st.sets(st.integers(0, 2**31 - 1), max_size=5), firsts=st.lists(st.integers(0, 2**62), min_size=5, max_size=5))
def test_epochs_read_back(epochs: set[int], firsts: list[int]) -> None:
    history = EpochHistory.of(zip(sorted(epochs), sorted(firsts), strict=False))
    assert decode_epochs(encode_epochs(history), where="test") == history


def test_identities_read_back() -> None:
    assert decode_partition_metadata(encode_partition_metadata(TOPIC_ID), where="test") == TOPIC_ID
    for properties in (
        MetaProperties(cluster_id="mPtQxumzSB6UIzXMtmWVUg", node_id=1),
        MetaProperties(cluster_id="c", node_id=7, directory_id="bmsN4gi7NZhwTHhYgLO0Yg"),
    ):
        assert decode_meta_properties(encode_meta_properties(properties), where="test") == properties


def test_ours_are_the_brokers_byte_for_byte() -> None:
    """But for the order of lines in offset checkpoints, where the broker has none."""
    for directory in sorted(unpack("pantry").iterdir()):
        if (directory / "leader-epoch-checkpoint").exists():
            raw = (directory / "leader-epoch-checkpoint").read_bytes()
            assert encode_epochs(decode_epochs(raw, where=directory.name)) == raw
        if (directory / "partition.metadata").exists():
            raw = (directory / "partition.metadata").read_bytes()
            assert encode_partition_metadata(decode_partition_metadata(raw, where=directory.name)) == raw
    for name in ("replication", "recovery-point", "log-start", "cleaner"):
        raw = (unpack("pantry") / f"{name}-offset-checkpoint").read_bytes()
        assert sorted(encode_offsets(decode_offsets(raw, where=name)).splitlines()) == sorted(raw.splitlines())


def test_a_checkpoint_that_was_never_written_to_is_empty() -> None:
    assert decode_offsets(b"", where="test") == {}
    assert decode_epochs(b"", where="test") == EpochHistory()


OFFSETS = b"0\n2\nsoup 0 5\nstew 1 17\n"


@pytest.mark.parametrize("cut", range(1, len(OFFSETS) - 2))
def test_a_truncated_checkpoint_is_noticed(cut: int) -> None:
    """Down to the last line's own digits; brokers rename whole files into place, so that cut does not happen."""
    with pytest.raises(CorruptData):
        decode_offsets(OFFSETS[:cut], where="test")


@pytest.mark.parametrize(
    "raw",
    [
        b"x\n",
        b"0\n",
        b"0\nx\n",
        b"0\n-1\n",
        b"0\n1\n",
        b"0\n99999999999999999999\n",
        b"0\n1\nsoup 0\n",
        b"0\n1\nsoup 0 5 6\n",
        b"0\n1\nsoup zero 5\n",
        b"0\n1\nsoup 0 5x\n",
        b"0\n1\nsoup -1 5\n",
        b"0\n1\n../soup 0 5\n",
        b"0\n2\nsoup 0 5\nsoup 0 6\n",
        b"0\n1\nso\xffup 0 5\n",
        "0\n1\nsoup 0 \u0665\n".encode(),
    ],
)
def test_a_damaged_offset_checkpoint_is_a_typed_error(raw: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_offsets(raw, where="test")


@pytest.mark.parametrize("raw", [b"0\n1\n5\n", b"0\n1\n5 x\n", b"0\n2\n5 0\n5 1\n", b"0\n2\n4 9\n5 1\n", b"0\n1\n-1 0\n", b"0\n1\n1 2 3\n"])
def test_a_damaged_epoch_checkpoint_is_a_typed_error(raw: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_epochs(raw, where="test")


@pytest.mark.parametrize(
    "raw", [b"", b"version: 0\n", b"version: 0\ntopic_id: ../../etc", b"version: 0\ntopic_id", b"version: 0\ntopic_id: \xff"]
)
def test_a_damaged_partition_metadata_is_a_typed_error(raw: bytes) -> None:
    with pytest.raises((CorruptData, UnsupportedFormat)):
        decode_partition_metadata(raw, where="test")


@pytest.mark.parametrize(
    "raw", [b"version=1\nnode.id=1\n", b"version=1\ncluster.id=../x\nnode.id=1\n", b"version=1\ncluster.id=c\n", b"junk"]
)
def test_damaged_meta_properties_are_a_typed_error(raw: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_meta_properties(raw, where="test")


def test_other_versions_are_named() -> None:
    for attempt in (
        lambda: decode_offsets(b"1\n0\n", where="test"),
        lambda: decode_epochs(b"1\n0\n", where="test"),
        lambda: decode_partition_metadata(f"version: 1\ntopic_id: {TOPIC_ID}".encode(), where="test"),
        lambda: decode_meta_properties(b"version=0\nbroker.id=1\ncluster.id=c\n", where="test"),
    ):
        with pytest.raises(UnsupportedFormat, match="version"):
            attempt()
