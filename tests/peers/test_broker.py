"""An agent that asks the broker beside it: what is committed is archived at once, and what is archived is deleted there."""

import time
from pathlib import Path
from statistics import median

import pytest

from tests.peers.agent import Agent, Headwater
from tests.peers.kafka import KafkaBroker, produce

pytestmark = [pytest.mark.peer, pytest.mark.slow]

SELDOM = {"replica.high.watermark.checkpoint.interval.ms": 60_000}  # the checkpoint comes too late to help
RARELY = 'seal_timeout = "1h"\nrescan = "1h"'


def test_what_is_rolled_is_archived_within_a_second(tmp_path: Path) -> None:
    with KafkaBroker(tmp_path / "kafka", tmp_path / "broker", properties=SELDOM) as broker:
        broker.create_topic("soup", 1, internal_segment_bytes=4096)
        headwater = Headwater(tmp_path / "headwater", broker.log_dir, log=f'bootstrap_servers = "{broker.bootstrap}"', archival=RARELY)
        directory = broker.log_dir / "soup-0"
        waits = []
        with Agent(headwater) as agent:
            agent.address()
            producer = broker.producer()
            time.sleep(1)
            for _ in range(6):
                before = len(list(directory.glob("*.log")))
                while len(list(directory.glob("*.log"))) == before:
                    produce(producer, "soup", [b"x" * 700])
                rolled_s = time.monotonic()
                end = max(int(path.stem) for path in directory.glob("*.log"))
                heads = headwater.bucket / "meta"
                while not any(f'"last_offset":{end - 1},' in path.read_text().replace(" ", "") for path in heads.rglob("manifest.json")):
                    assert time.monotonic() < rolled_s + 20, agent.log_text()[-3000:]
                    time.sleep(0.005)
                waits.append(time.monotonic() - rolled_s)
                time.sleep(0.3)
            agent.stop()
    print(f"from roll to manifest: {[round(each, 3) for each in waits]} s")
    assert median(waits) < 1.0
