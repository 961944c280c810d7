"""How soon records are read and written after an instant recovery: the time is to depend on partitions alone, and not on what is archived.

    python -m bench.instant [--partitions 100,1000] [--gb 1,100] [--scratch DIR]

An archive of so many partitions is lost with its cluster. From the start of `headwater recover apply topic --all --mode instant` on we
measure until the recovery is done, until the oldest record has come through the gateway of an agent beside a real broker over the new
directory, and until that broker has acknowledged a new record. All but the oldest ten records of each partition are holes in sparse files,
which nothing reads. The bucket is a directory. A broker's own start is in each number but the first: how long it takes without us is
measured on the same directory afterwards. Ends with exit code 1 where an aim is not reached.
"""

import argparse
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import msgspec
import structlog
from confluent_kafka import Consumer, Message, TopicPartition
from rich.console import Console
from rich.table import Table

from bench.logs import CLUSTER
from bench.partitions import BATCH_RECORDS, Partitions
from headwater_core.epochs import EpochStart
from headwater_core.objectstore.directory import DirectoryStore
from manifests import keys
from manifests.entry import Entry
from manifests.entry_tree import EntryTree
from manifests.repository import ManifestRepository
from tests.headwater.gateway.archives import archive
from tests.peers.agent import Agent, Headwater
from tests.peers.kafka import KafkaBroker, free_port

GB = 10**9
SPARSE_RECORDS = 1_000_000
AIM_S = {100: 10, 1000: 60}  # with so many partitions and fewer, whatever the size
TOPIC = "topic-0000"


class Cost(NamedTuple):
    """Seconds from the start of the recovery on; of the broker's start its own."""

    recovered_s: float
    produced_s: float
    read_s: float
    broker_start_s: float


def enlarge(bucket: Path, partitions: Partitions, size_bytes: int) -> None:
    """Let each head list one more run of `size_bytes`, whose object is a hole."""
    manifests = ManifestRepository(DirectoryStore(bucket))
    for partition in partitions:
        held = manifests.load(partition)
        assert held is not None
        base, last = held.head.next_offset, held.head.next_offset + SPARSE_RECORDS - 1
        (entry,) = held.head.entries
        key = keys.data(partition, base, last, held.head.fence, entry.uid)
        hole = msgspec.structs.replace(
            entry,
            base_offset=base,
            last_offset=last,
            epochs=(EpochStart(0, base),),
            records=SPARSE_RECORDS,
            key=key,
            index_key=keys.index(key),
            size_bytes=size_bytes,
            live_bytes=size_bytes,
        )
        with (bucket / key).open("wb") as file:
            file.truncate(size_bytes)
        (bucket / hole.index_key).write_bytes((bucket / entry.index_key).read_bytes())
        entries: list[Entry] = [entry, hole]
        manifests.commit(held, msgspec.structs.replace(held.head, entries=EntryTree(entries), last_offset=last))


def measure(root: Path, count: int, size_bytes: int) -> Cost:
    partitions = Partitions(root / "lost", count, 1)
    partitions.make()
    bucket = root / "headwater" / "bucket"
    bucket.mkdir(parents=True)
    archive(partitions.directory, DirectoryStore(bucket), workers=4)
    enlarge(bucket, partitions, size_bytes // count)
    partitions.remove()
    log_dir = root / "kafka"
    broker = KafkaBroker(log_dir, root / "broker")
    headwater = Headwater(root / "headwater", log_dir, listen=f"127.0.0.1:{free_port()}")
    began_s = perf_counter()
    command = [str(Path(sys.executable).with_name("headwater")), "--config", str(headwater.file), "recover", "apply"]
    ways = ["--mode", "instant", "--cluster-id", CLUSTER, "--into", str(log_dir)]
    counts = [f"--partitions={TOPIC[:-4]}{at:04}={min(50, count - 50 * at)}" for at in range(partitions.topics)]
    subprocess.run([*command, "topic", "--all", *ways, *counts], check=True, capture_output=True)
    recovered_s = perf_counter() - began_s
    broker.launch()
    with Agent(headwater) as agent:
        gateway = agent.address()
        read_s = oldest(gateway) - began_s
        broker.wait_ready()
        end = produced(broker)
        produced_s = perf_counter() - began_s
        assert end == BATCH_RECORDS + SPARSE_RECORDS, end
        agent.stop()
    broker.stop()
    began_s = perf_counter()
    broker.start()
    broker_start_s = perf_counter() - began_s
    broker.stop()
    return Cost(recovered_s, produced_s, read_s, broker_start_s)


def oldest(bootstrap: str) -> float:
    """When the record of offset 0 has come."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench"})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    (message,) = consumer.consume(1, timeout=120)
    assert message.error() is None, message.error()
    assert message.offset() == 0
    found_s = perf_counter()
    consumer.close()
    return found_s


def produced(broker: KafkaBroker) -> int:
    """The offset of a record that is written now."""
    delivered: list[Message] = []
    producer = broker.producer(acks="all")
    producer.produce(TOPIC, b"new", partition=0, on_delivery=lambda error, message: delivered.append(message))
    assert producer.flush(120) == 0
    offset = delivered[0].offset()
    assert offset is not None
    return offset


def missed(count: int, gb: int, cost: Cost) -> list[str]:
    """The aims that are not reached, for people."""
    aim_s = next((aim_s for most, aim_s in AIM_S.items() if count <= most), None)
    found = [("first old record", cost.read_s), ("first new record", cost.produced_s)]
    late = [(what, took_s) for what, took_s in found if aim_s is not None and took_s > aim_s]
    return [f"{count} partitions, {gb} GB: {what} after {took_s:.1f} s, aim {aim_s} s" for what, took_s in late]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", default="100,1000", help="comma-separated (default 100,1000)")
    parser.add_argument("--gb", default="1,100", help="archived, all partitions together; comma-separated (default 1,100)")
    parser.add_argument("--scratch", type=Path, help="where files go")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    table = Table("partitions", "GB", "recovered, s", "first old record, s", "first new record, s", "a broker's start alone, s")
    failures: list[str] = []
    for count, gb in product((int(each) for each in arguments.partitions.split(",")), (int(each) for each in arguments.gb.split(","))):
        with tempfile.TemporaryDirectory(prefix="headwater-bench-", dir=arguments.scratch) as work:
            cost = measure(Path(work), count, gb * GB)
        failures += missed(count, gb, cost)
        table.add_row(
            str(count), str(gb), *(f"{each:.1f}" for each in (cost.recovered_s, cost.read_s, cost.produced_s, cost.broker_start_s))
        )
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    if failures:
        sys.exit("not reached: " + "; ".join(failures))


if __name__ == "__main__":
    main()
