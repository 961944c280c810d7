import io

import pytest
from msgspec import structs

from archival.partition.entry_reader import ArchivedEntries
from headwater_core.errors import CorruptData
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.manifests.builders import an_entry

DATA = bytes(range(10))


@pytest.mark.parametrize(("live_bytes", "pieces"), [(10, [4, 4, 2]), (8, [4, 4]), (3, [3])])
def test_the_live_bytes_of_an_entry_come_in_pieces(live_bytes: int, pieces: list[int]) -> None:
    store, entry = MemoryStore(), structs.replace(an_entry(0, 0), live_bytes=live_bytes)
    store.put(entry.key, io.BytesIO(DATA), size_bytes=10)
    found = [bytes(piece) for piece in ArchivedEntries(store).pieces(entry, 4)]
    assert ([len(piece) for piece in found], b"".join(found)) == (pieces, DATA[:live_bytes])


def test_an_object_that_is_not_there_is_damage() -> None:
    with pytest.raises(CorruptData, match="does not have it"):
        list(ArchivedEntries(MemoryStore()).pieces(an_entry(0, 0), 4))
