import io

import pytest

from headwater_core.errors import CorruptData, SourceChanged
from tests.archival.builders import Agent, Directory, batches_of
from tests.headwater_core.segments.builders import a_batch, a_commit, a_segment, an_abort


def test_open_transactions_are_carried_from_entry_to_entry_across_restarts(directory: Directory, agent: Agent) -> None:
    directory.segment(0, a_batch(0, producer=7, transactional=True))
    directory.segment(1, a_batch(1, producer=8, transactional=True))
    directory.segment(2, an_abort(2, 7), a_commit(3, 8))
    directory.segment(4)
    directory.high_watermark(4)
    for _ in range(4):
        agent = Agent(directory.root, store=agent.store)  # knows nothing but the bucket
        agent.uids = 100 * len(list(agent.store.list("data/")))
        agent.step()
    assert [(entry.open_from, entry.aborted) for entry in agent.head.entries] == [(0, 0), (0, 0), (None, 1)]


def test_corrupt_local_bytes_are_not_uploaded(directory: Directory, agent: Agent) -> None:
    damaged = bytearray(a_segment(0, 5))
    damaged[-1] ^= 1
    directory.segment(0, bytes(damaged))
    directory.segment(5)
    directory.high_watermark(5)
    with pytest.raises(CorruptData):
        agent.run()
    assert list(agent.store.list("data/")) == []


def test_records_that_are_not_on_the_epoch_history_are_not_uploaded(directory: Directory, agent: Agent) -> None:
    directory.segment(0, a_segment(0, 5, epoch=3))
    directory.high_watermark(5)
    with pytest.raises(SourceChanged, match="history"):
        agent.run()


def test_an_object_is_exactly_its_batches(directory: Directory, agent: Agent) -> None:
    batches = [a_batch(0, 3), a_batch(3, 2)]
    directory.segment(0, *batches)
    directory.high_watermark(5)
    agent.run()
    (entry,) = agent.head.entries
    assert batches_of(agent.store, entry) == batches
    assert agent.store.get(entry.key)[0] == b"".join(batches)
    assert io.BytesIO(agent.store.get(entry.index_key)[0]).read(4) == b"HWRI"
