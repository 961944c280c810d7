"""librdkafka reads everything while the cache is emptied and the agent killed, and again from what was recovered."""

import shutil
import signal
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures import Isolation, expected
from tests.headwater.conftest import Stage
from tests.headwater.gateway.readers import read_with_librdkafka
from tests.headwater.gateway.test_clients import ISOLATIONS, assert_same, places_of
from tests.headwater.test_agent import Agent, running

CACHE_BYTES = 24 << 10  # of some 400 KiB that are in the bucket alone
SERVED = ("pantry-live", *(pytest.param(name, marks=pytest.mark.long) for name in ("kitchen", "pantry")))
SMALL = ("--set", f"hydration.cache_bytes={CACHE_BYTES}", "--set", "hydration.chunk_bytes=64KiB")
SIPS = {"fetch.message.max.bytes": 4096, "queued.min.messages": 10, "queued.max.messages.kbytes": 16}
HASTE = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200}


def address_of(agent: Agent) -> str:
    return str(agent.wait_for("gateway_started")["listen"])


def cached_bytes(stage: Stage) -> int:
    return sum(row["size_bytes"] for row in stage.run("cache", "show", "-o", "jsonl").rows)


@dataclass(frozen=True, slots=True)
class Served:
    """What an agent serves of a fixture whose archived part is in the bucket and nowhere else."""

    name: str
    log: Path | None

    def read(self, agent: Agent, isolation: Isolation, **how: Any) -> None:
        rows = read_with_librdkafka(address_of(agent), places_of(self.name, isolation), isolation, **how)
        assert_same(rows, expected(self.name, isolation))


@pytest.fixture
def served(stage: Stage, request: pytest.FixtureRequest) -> Served:
    """The pantries keep their active segments; the kitchen has no others, and loses them all."""
    name = str(request.param)
    log = stage.log(name)
    if name == "kitchen":
        assert stage.run("flush", log=log).code == 0
        shutil.rmtree(log)
        return Served(name, None)
    ran = stage.run("archive", "--set", "log.owned=true", "-o", "jsonl", log=log)
    assert ran.code == 0, ran.err
    assert sum(row["released_bytes"] for row in ran.rows) > 4 * CACHE_BYTES
    return Served(name, log)


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["read_uncommitted", pytest.param("read_committed", marks=pytest.mark.long)])
@pytest.mark.parametrize("served", SERVED, indirect=True)
def test_the_agents_cache_is_evicted_in_mid_read(stage: Stage, served: Served, isolation: Isolation) -> None:
    """By the verb, from another process; and the cache is much smaller than what is read through it."""
    dropped = []

    def evict(records: int) -> None:
        if records % 100 == 0:
            dropped.append(cached_bytes(stage))
            assert stage.run("cache", "evict", "--all").code == 0

    with running(stage, served.log, *SMALL) as agent:
        served.read(agent, isolation, after=evict, **SIPS)
        assert sum(dropped) > 0
        served.read(agent, isolation)
        assert agent.stop() == 0
    assert cached_bytes(stage) <= CACHE_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["read_committed", pytest.param("read_uncommitted", marks=pytest.mark.long)])
@pytest.mark.parametrize("served", SERVED, indirect=True)
def test_the_agent_is_killed_and_started_again_in_mid_read(stage: Stage, served: Served, isolation: Isolation) -> None:
    """The client continues where it was, with an agent that finds journal, cache and lock as kill -9 left them."""
    with ExitStack() as agents:
        lives = [agents.enter_context(running(stage, served.log, *SMALL))]
        address = address_of(lives[0])

        def restart(records: int) -> None:
            if records in (40, 100):
                assert lives[-1].stop(signal.SIGKILL) == -signal.SIGKILL
                lives.append(agents.enter_context(running(stage, served.log, *SMALL, "--set", f"gateway.listen={address}")))
                assert address_of(lives[-1]) == address

        served.read(lives[0], isolation, after=restart, **SIPS, **HASTE)
        assert len(lives) == 3
        assert lives[-1].stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVED)
def test_what_was_recovered_is_served(stage: Stage, name: str) -> None:
    """The log is lost, and the agent's state: recovered. Then even the bucket is lost, and a client reads everything."""
    log = stage.log(name)
    assert stage.run("archive", "--set", "log.owned=true", log=log).code == 0
    assert stage.run("flush", log=log).code == 0
    shutil.rmtree(log)
    shutil.rmtree(stage.data_dir)
    into = stage.root / "recovered"
    assert stage.run("recover", "apply", "topic", "--all", "--open-transactions", "keep", "--into", str(into)).code == 0
    shutil.rmtree(stage.bucket)
    shutil.rmtree(stage.data_dir)
    stage.bucket.mkdir()
    with running(stage, into) as agent:
        for isolation in ISOLATIONS:
            Served(name, into).read(agent, isolation)
