"""A broker that rolls, compacts, restarts and dies while the agent runs ends up archived completely."""

import random
import time
from pathlib import Path
from typing import Any

import pytest

import recovery
from headwater.wiring import open_bucket
from manifests.head import Head
from tests.peers.agent import OFTEN, Agent, Headwater
from tests.peers.java_client import JavaRead, java_consume, wait_for_markers
from tests.peers.kafka import KafkaBroker, expect_compacted, expect_same, produce

pytestmark = [pytest.mark.peer, pytest.mark.slow]

PLAIN, COMPACTED, PAID = "plain.events", "stock.state", "paid.orders"
TOPICS = [PAID, PLAIN, COMPACTED]


def work(broker: KafkaBroker, round_: int, rng: random.Random) -> None:
    """Some segments' worth of everything."""
    plain = broker.producer(compression_type=rng.choice(["none", "lz4", "zstd"]))
    for partition in (0, 1):
        produce(plain, PLAIN, [b"%d-%d-" % (round_, at) + rng.randbytes(400) for at in range(25)], partition=partition)
    keys = [b"key-%d" % rng.randrange(8) for _ in range(40)]
    produce(plain, COMPACTED, [b"%d-" % round_ + rng.randbytes(150) for _ in keys], keys=keys)
    paid = broker.producer(transactional_id="till")
    paid.init_transactions(30)
    for committed in (False, True):
        paid.begin_transaction()
        produce(paid, PAID, [b"%d-%s-" % (round_, b"paid" if committed else b"void") + rng.randbytes(900) for _ in range(8)])
        paid.commit_transaction(30) if committed else paid.abort_transaction(30)


def latest(read: JavaRead, topic: str) -> dict[Any, Any]:
    return {record["key"]: record["value"] for record in read.records if record["topic"] == topic}


def of(read: JavaRead, *topics: str) -> list[dict[str, Any]]:
    return [record for record in read.records if record["topic"] in topics]


def test_everything_a_live_broker_wrote_is_archived_and_comes_back(tmp_path: Path) -> None:
    rng = random.Random(7)
    headwater = Headwater(tmp_path / "headwater", tmp_path / "kafka")
    broker = KafkaBroker(
        tmp_path / "kafka",
        tmp_path / "broker",
        properties={"log.cleaner.backoff.ms": 200, "log.segment.delete.delay.ms": 500, "log.cleaner.min.cleanable.ratio": 0.01},
    )
    with broker:
        broker.create_topic(PLAIN, 2, internal_segment_bytes=4096)
        broker.create_topic(PAID, 1, internal_segment_bytes=4096)
        broker.create_topic(
            COMPACTED, 1, internal_segment_bytes=2048, cleanup_policy="compact", min_cleanable_dirty_ratio=0.01, min_compaction_lag_ms=0
        )
        with Agent(headwater) as agent:
            agent.address()
            work(broker, 0, rng)
            broker.stop()  # in order
            broker.start()
            work(broker, 1, rng)
            agent.kill()  # and continues later from where the bucket has it
            work(broker, 2, rng)
            broker.kill()
            broker.start()
        with Agent(headwater) as agent:
            work(broker, 3, rng)
            wait_for_markers(broker.bootstrap)
            reads = {isolation: java_consume(broker.bootstrap, TOPICS, isolation) for isolation in ("read_uncommitted", "read_committed")}
            agent.caught_up({place: end for place, (_, end) in reads["read_uncommitted"].bounds.items()})
            agent.stop()
    assert f"{COMPACTED} 0 " in (tmp_path / "kafka" / "cleaner-offset-checkpoint").read_text()
    assert all(len(headwater.heads()[topic, 0].entries) > 5 for topic in (PLAIN, PAID))
    bucket = open_bucket(headwater.config)
    recovery.apply(recovery.plan(bucket.manifests, TOPICS), tmp_path / "recovered", bucket.store)
    with KafkaBroker(tmp_path / "recovered", tmp_path / "second", compaction=False) as second:
        for isolation, wanted in reads.items():
            found = java_consume(second.bootstrap, TOPICS, isolation)
            expect_same(of(found, PLAIN, PAID), of(wanted, PLAIN, PAID), isolation)
            assert found.bounds == wanted.bounds
            expect_compacted(of(found, COMPACTED), of(wanted, COMPACTED), isolation)


def test_a_compacted_archive_becomes_as_small_as_its_log(tmp_path: Path) -> None:
    """Where that is requested, and without a word that the log has lacking in the archive."""
    rng = random.Random(8)
    headwater = Headwater(tmp_path / "headwater", tmp_path / "kafka", archival=f"{OFTEN}\nmin_saved_percent = 40")
    fast = {"log.cleaner.backoff.ms": 200, "log.segment.delete.delay.ms": 500, "log.cleaner.min.cleanable.ratio": 0.01}
    with KafkaBroker(tmp_path / "kafka", tmp_path / "broker", properties=fast) as broker, Agent(headwater) as agent:
        broker.create_topic(
            COMPACTED, 1, internal_segment_bytes=2048, cleanup_policy="compact", min_cleanable_dirty_ratio=0.01, min_compaction_lag_ms=0
        )
        producer, until_s = broker.producer(), time.monotonic() + 120
        agent.address()
        replaced: Head | None = None
        while replaced is None or not replaced.superseded:
            keys = [b"key-%d" % rng.randrange(8) for _ in range(20)]
            produce(producer, COMPACTED, [rng.randbytes(150) for _ in keys], keys=keys)
            assert time.monotonic() < until_s, "nothing was replaced"
            time.sleep(0.5)  # so that the archive is ahead of the cleaner
            replaced = headwater.heads().get((COMPACTED, 0))
        wanted = java_consume(broker.bootstrap, [COMPACTED], "read_committed")
        agent.caught_up({place: end for place, (_, end) in wanted.bounds.items()})
        agent.stop()
    assert '"event": "runs_replaced"' in agent.log_text()
    assert "needs replacement" not in agent.log_text()
    before = list(replaced.superseded)
    after = [each for each in replaced.entries if each.last_offset <= before[-1].last_offset]
    assert sum(each.live_bytes for each in after) <= 0.6 * sum(each.live_bytes for each in before)
    bucket = open_bucket(headwater.config)
    recovery.apply(recovery.plan(bucket.manifests, [COMPACTED]), tmp_path / "recovered", bucket.store)
    with KafkaBroker(tmp_path / "recovered", tmp_path / "second", compaction=False) as second:
        found = java_consume(second.bootstrap, [COMPACTED], "read_committed")
        assert found.bounds == wanted.bounds
        assert latest(found, COMPACTED) == latest(wanted, COMPACTED)
