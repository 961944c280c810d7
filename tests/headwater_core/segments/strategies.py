"""Records and batches for property tests."""

from hypothesis import strategies as st

from headwater_core.segments import codecs
from headwater_core.segments.records import Record
from tests.headwater_core.segments.builders import Producer

offsets = st.integers(0, 2**62)
optional_bytes = st.none() | st.binary(max_size=300)
timestamps = st.integers(-1, 2**50)
codec_numbers = st.sampled_from([codecs.NONE, codecs.GZIP, codecs.SNAPPY, codecs.LZ4, codecs.ZSTD])
headers = st.lists(st.tuples(st.text(max_size=10), optional_bytes), max_size=3).map(tuple)
producers = st.none() | st.builds(Producer, id=st.integers(0, 2**40), epoch=st.integers(0, 2**15 - 1), sequence=st.integers(0, 2**31 - 1))


@st.composite
def records(draw: st.DrawFn, *, base_offset: int | None = None, min_size: int = 1) -> list[Record]:
    """Records of rising offsets, with the holes that compaction leaves."""
    base = draw(offsets) if base_offset is None else base_offset
    offset = base
    found = []
    for gap in draw(st.lists(st.integers(0, 3), min_size=min_size, max_size=6)):
        offset += gap
        found.append(Record(offset, draw(timestamps), draw(optional_bytes), draw(optional_bytes), draw(headers)))
        offset += 1
    return found
