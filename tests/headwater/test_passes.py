"""Passes end when they are told to, and survive what goes wrong with one partition."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from archival.archiver import Outcome, PartitionArchiver
from archival.plan import Policy
from headwater.agent import _Answers
from headwater.agent_socket import Ask
from headwater.archivist import Held, Order, holding, pass_rows
from headwater.config import load
from model.errors import TransientError
from tests.headwater.conftest import Stage


@pytest.fixture
def held(stage: Stage) -> Iterator[Held]:
    flags = {"node.data_dir": str(stage.data_dir), "store.url": f"file://{stage.bucket}", "log.dirs": [str(stage.log("kitchen"))]}
    with holding(load(None, {}, flags)) as opened:
        yield opened


def test_a_file_that_cannot_be_read_stops_its_own_partition_only(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    step = PartitionArchiver.step

    def failing(archiver: PartitionArchiver, policy: Policy) -> Outcome:
        if archiver.partition.topic == "orders.in":
            raise OSError(5, "Input/output error")
        return step(archiver, policy)

    monkeypatch.setattr(PartitionArchiver, "step", failing)
    assert held.archiving is not None
    outcomes = list(held.archiving.run(Order().policy))
    assert {outcome.place.topic for outcome in outcomes if outcome.error} == {"orders.in"}
    assert all(isinstance(outcome.error, TransientError) for outcome in outcomes if outcome.error)
    assert len(outcomes) > 5


def test_a_stopped_pass_says_that_it_was_stopped(held: Held) -> None:
    assert held.archiving is not None
    stop = threading.Event()
    rows = pass_rows(held.archiving, Order(), stop)
    next(rows)
    stop.set()
    with pytest.raises(TransientError, match="stopped"):
        list(rows)


def test_an_answer_that_nobody_waits_for_ends_and_leaves_the_archivers_usable(held: Held) -> None:
    async def talk() -> None:
        answers = _Answers(held)
        rows = answers.answer(Ask("archive"))
        await anext(rows)
        await rows.aclose()
        assert not answers._stops
        cancelled = asyncio.create_task(anext(answers.answer(Ask("archive"))))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert len([row async for row in answers.answer(Ask("archive"))]) > 5
        answers.stop()
        with pytest.raises(TransientError, match="stopping"):
            await anext(answers.answer(Ask("archive")))

    asyncio.run(talk())
