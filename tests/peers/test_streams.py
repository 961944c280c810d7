"""A Kafka Streams application with exactly-once goes on after its cluster was lost inside its transactions."""

import shutil
import time
from collections import Counter
from pathlib import Path

import pytest

import recovery
from headwater_core.clock import SystemClock
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.peers.counter import PATIENCE_S, counting, counts, wait_for_counts
from tests.peers.java_client import java_consume
from tests.peers.kafka import KafkaBroker, produce
from tests.recovery.archived import archive

pytestmark = pytest.mark.peer

KEYS = [b"soup", b"salad", b"stew", b"bread", b"tea"]
COORDINATORS = ("__transaction_state", "__consumer_offsets")


def feed(broker: KafkaBroker, count: int) -> Counter[bytes]:
    producer, keys = broker.producer(), [KEYS[at % len(KEYS)] for at in range(count)]
    for at, key in enumerate(keys):
        produce(producer, "in", [b"%d" % at], keys=[key], partition=KEYS.index(key) % 2)
    return Counter(keys)


@pytest.mark.parametrize("coordinators", ["as old", pytest.param("older", marks=pytest.mark.long)])
def test_an_application_with_exactly_once_goes_on(coordinators: str, tmp_path: Path) -> None:
    """Where all was archived as it stood when the cluster was lost, each record counts once. Where the coordinators are older, the
    application reads some again, which nothing can prevent, and stops at nothing."""
    broker = KafkaBroker(tmp_path / "kafka", tmp_path / "broker")
    store = MemoryStore(SystemClock())
    with broker:
        broker.create_topic("in", 2)
        broker.create_topic("out", 2)
        with counting(broker.bootstrap, tmp_path / "one", 200):
            fed = feed(broker, 50)
            wait_for_counts(broker.bootstrap, fed)
        shutil.copytree(tmp_path / "kafka", tmp_path / "earlier")
        with counting(broker.bootstrap, tmp_path / "two", 300_000):
            fed += feed(broker, 40)
            wait_for_counts(broker.bootstrap, fed, "read_uncommitted")  # inside a transaction
            broker.kill()
    topics = [path.name.rpartition("-")[0] for path in (tmp_path / "kafka").iterdir() if (path / "partition.metadata").exists()]
    if coordinators == "older":
        archive(tmp_path / "earlier", store, COORDINATORS)
    repository = archive(tmp_path / "kafka", store, [topic for topic in topics if coordinators == "as old" or topic not in COORDINATORS])
    plan = recovery.plan(repository, None, recovery.Options())
    assert (plan.problems, plan.torn) == ((), ())
    recovery.apply(plan, tmp_path / "recovered", store)
    with KafkaBroker(tmp_path / "recovered", tmp_path / "again") as broker:
        with counting(broker.bootstrap, tmp_path / "three", 200):
            fed += feed(broker, 30)
            if coordinators == "as old":
                wait_for_counts(broker.bootstrap, fed)
                assert counts(broker.bootstrap, "read_committed") == {key: list(range(1, count + 1)) for key, count in fed.items()}
            else:
                wait_for_all(broker, fed)
        bounds = [java_consume(broker.bootstrap, ["in", "out"], isolation).bounds for isolation in ("read_uncommitted", "read_committed")]
        assert bounds[0] == bounds[1]


def wait_for_all(broker: KafkaBroker, fed: Counter[bytes]) -> None:
    """Every record is counted at least once."""
    until_s = time.monotonic() + PATIENCE_S
    while not (found := counts(broker.bootstrap, "read_committed")) or any(max(found.get(key, [0])) < count for key, count in fed.items()):
        assert time.monotonic() < until_s, (found, fed)
        time.sleep(0.5)
