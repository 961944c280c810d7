"""What an agent that archives beside a real broker costs the broker's producers: latency with and without it, in alternating rounds.

    python -m bench.producer [--rounds 5] [--seconds 15] [--rate 5000] [--asks] [--streaming] [--scratch DIR]

One producer sends records of 1 KiB with acks=all at a fixed rate to four partitions with segments of 4 MiB, so that something is rolled
every few seconds; its latency is from the call to the broker's acknowledgement, as librdkafka measures it. The agent is a process of
its own over a directory store on the same disk, and has caught up before its rounds begin. With --asks it asks the broker what is committed
and has it delete what is archived. With --streaming an agent is there in every round, and streaming offload, whose objects are closed after
10 s, is compared with per-segment archiving. Broker, producer, agent and store share the machine, as they do on a broker's host only in
part.
"""

import argparse
import sys
import tempfile
import time
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.peers.agent import Agent, Headwater
from tests.peers.kafka import KafkaBroker

PARTITIONS = 4
VALUE_BYTES = 1024
SEGMENT_BYTES = 4 << 20
TOPIC = "measured"
NO_AGENT, PER_SEGMENT, STREAMING = "none", "per-segment", "streaming"
SETTLE_S = 3.0
_WARM_S = 10.0  # for the broker's compilers


def latencies(broker: KafkaBroker, seconds: float, rate: int) -> list[float]:
    """Of each record, in seconds, in order. The producer keeps to its schedule: a slow answer does not thin out what follows."""
    producer = broker.producer(acks="all", linger_ms=5, queue_buffering_max_messages=1_000_000)
    found: list[float] = []

    def delivered(error: Any, message: Any) -> None:
        assert error is None, error
        found.append(message.latency())

    value, begun = bytes(VALUE_BYTES - 8), time.monotonic()
    for number in count():
        ahead_s = begun + number / rate - time.monotonic()
        if number >= seconds * rate:
            break
        producer.poll(max(0.0, ahead_s) if ahead_s > 0.001 else 0)
        producer.produce(TOPIC, number.to_bytes(8, "big") + value, partition=number % PARTITIONS, on_delivery=delivered)
    assert producer.flush(60) == 0
    return found


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def ends(broker: KafkaBroker) -> dict[tuple[str, int], int]:
    """Where the newest segment of each partition begins: everything before is sealed."""
    return {
        (TOPIC, number): max(int(path.stem) for path in (broker.log_dir / f"{TOPIC}-{number}").glob("*.log"))
        for number in range(PARTITIONS)
    }


def measure(work: Path, rounds: int, seconds: float, rate: int, ways: tuple[str, str], *, asks: bool) -> dict[str, list[list[float]]]:
    """Latencies of each round, by which of two ways was at work: NO_AGENT, or an agent's `offload`."""
    properties = {"replica.high.watermark.checkpoint.interval.ms": 5_000}  # Kafka's own
    found: dict[str, list[list[float]]] = {way: [] for way in ways}
    with KafkaBroker(work / "kafka", work / "broker", properties=properties, fast=True) as broker:
        broker.create_topic(TOPIC, PARTITIONS, segment_bytes=SEGMENT_BYTES)
        latencies(broker, _WARM_S, rate)
        for round_ in range(2 * rounds):
            way = ways[round_ % 4 in (1, 2)]  # one, other, other, one: what drifts concerns both alike
            if way == NO_AGENT:
                time.sleep(SETTLE_S)
                found[way].append(latencies(broker, seconds, rate))
                continue
            headwater = Headwater(
                work / "headwater",
                broker.log_dir,
                log=f'bootstrap_servers = "{broker.bootstrap}"' if asks else "",
                archival=f'release = {str(asks).lower()}\noffload = "{way}"\nmax_segment_age = "10s"',
            )
            with Agent(headwater) as agent:
                agent.address()
                agent.caught_up(ends(broker), patience_s=120)
                time.sleep(SETTLE_S)
                found[way].append(latencies(broker, seconds, rate))
                agent.caught_up(ends(broker), patience_s=120)
                agent.stop()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="with and without each (default 5)")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each round (default 15)")
    parser.add_argument("--rate", type=int, default=5000, help="records a second (default 5000)")
    parser.add_argument("--asks", action="store_true", help="the agent asks the broker, and has it delete what is archived")
    parser.add_argument("--streaming", action="store_true", help="what streaming offload costs beside per-segment archiving")
    parser.add_argument("--scratch", type=Path, help="where files go")
    arguments = parser.parse_args()
    ways = (PER_SEGMENT, STREAMING) if arguments.streaming else (NO_AGENT, PER_SEGMENT)
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as work:
        found = measure(Path(work), arguments.rounds, arguments.seconds, arguments.rate, ways, asks=arguments.asks)
    table = Table(
        "agent", "p50 ms", "p99 ms", "p99.9 ms", "p99 of each round", title=f"{arguments.rate} records of {VALUE_BYTES} B a second"
    )
    medians = {}
    for way, each in found.items():
        of = {share: median(quantile(one, share) for one in each) * 1000 for share in (0.5, 0.99, 0.999)}
        medians[way] = of[0.99]
        single = " ".join(f"{quantile(one, 0.99) * 1000:.1f}" for one in each)
        table.add_row(way, *(f"{value:.1f}" for value in of.values()), single)
    Console(file=sys.stdout, width=140).print(table)
    base, measured = ways
    print(f"p99 with {measured} beside {base}: {(medians[measured] / medians[base] - 1) * 100:+.0f} %")


if __name__ == "__main__":
    main()
