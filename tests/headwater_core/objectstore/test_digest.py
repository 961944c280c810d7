import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater_core.errors import CorruptData
from headwater_core.objectstore.digest import Digest, digest_of, from_s3, is_digest, to_s3


def test_the_check_value_of_the_standard() -> None:
    assert digest_of(b"123456789") == "crc64nvme:ae8b14860a799888"


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_pieces_add_up_however_they_are_cut(pieces: list[bytes]) -> None:
    whole, updated, appended = b"".join(pieces), Digest(), Digest()
    for piece in pieces:
        updated.update(memoryview(piece))
        alone = Digest()
        alone.update(piece)
        appended.append(alone.value, len(piece))
    assert updated.text() == appended.text() == digest_of(whole)
    assert updated.size_bytes == appended.size_bytes == len(whole)


@given(st.binary(min_size=1, max_size=300), st.data())
def test_a_flipped_bit_and_a_cut_are_noticed(content: bytes, data: st.DataObject) -> None:
    bit = data.draw(st.integers(0, len(content) * 8 - 1))
    flipped = bytearray(content)
    flipped[bit // 8] ^= 1 << bit % 8
    assert digest_of(flipped) != digest_of(content)
    assert digest_of(content[:-1]) != digest_of(content)


@given(st.integers(0, 2**64 - 1))
def test_s3_s_form_reads_back(value: int) -> None:
    text = from_s3(to_s3(value))
    assert is_digest(text)
    assert int(text.removeprefix("crc64nvme:"), 16) == value


@pytest.mark.parametrize("header", ["", "x", "AAAA", "rosUhgp5mIg", "rosUhgp5mIg=-4", "rosUhgp5mIgAAA==", "ä"])
def test_a_header_that_is_no_checksum_is_corrupt(header: str) -> None:
    with pytest.raises(CorruptData):
        from_s3(header)


@pytest.mark.parametrize("text", ["", "crc64nvme:", "crc64nvme:AE8B14860A799888", "crc64nvme:ae8b14860a799888\n", "crc32c:ae8b1486"])
def test_what_is_no_digest(text: str) -> None:
    assert not is_digest(text)


def test_an_empty_digest_is_that_of_nothing() -> None:
    assert Digest().text() == digest_of(io.BytesIO().read())
