"""Measure release's list of all groups beside Kafka's own admin client, on the same broker in the same run.

    python -m bench.groups [--groups 1000,5000] [--partitions 10] [--rounds 5] [--scratch DIR]

Each group has committed an offset of every partition of one topic, and has no members. Both list all groups and read all their commits:
Headwater as the agent does before it releases something, the Java client by `listGroups` and one `listConsumerGroupOffsets` of all of them.
Both have done it before; rounds of the two take turns, and every number is the median, with the least and the most. The memory is what
Python holds at most while it lists, beside what it returns.
"""

import argparse
import os
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from headwater.broker.broker_client import BrokerClient
from headwater.broker.broker_connection import BrokerAddress, BrokerApi, BrokerConnection
from headwater.broker.client_properties import load_client_properties
from headwater_core.clock import SystemClock
from headwater_core.segments.log_dirs import LogDirs
from tests.peers.java_client import java_client
from tests.peers.kafka import KafkaBroker

TOPIC = "orders"
AWAY = {14, 15, 16}  # a coordinator loads, or comes into being


def commit(connection: BrokerConnection, groups: Sequence[str], partitions: int) -> None:
    """Commit an offset of every partition in the name of each group, as its only owner."""
    committed = {"committed_leader_epoch": -1, "committed_metadata": ""}
    rows = [{"partition_index": number, "committed_offset": number + 1, **committed} for number in range(partitions)]
    for group in groups:
        fields = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
        while True:
            answer = connection.ask(BrokerApi.OFFSET_COMMIT, fields | {"topics": [{"name": TOPIC, "partitions": rows}]})
            codes = {partition["error_code"] for topic in answer["topics"] for partition in topic["partitions"]}
            if codes == {0}:
                break
            assert codes <= AWAY, f"{group} cannot commit: {codes}"
            connection.ask(BrokerApi.FIND_COORDINATOR, {"key_type": 0, "coordinator_keys": [group]})  # makes the offsets topic
            time.sleep(0.2)


def spread(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds) * 1000:,.0f} ({min(seconds) * 1000:,.0f}-{max(seconds) * 1000:,.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", default="1000,5000")
    parser.add_argument("--partitions", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scratch")
    arguments = parser.parse_args()
    table = Table(title=f"all groups of a broker, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before")
    for column in ("groups", "commits", "headwater ms", "CPU ms", "java ms", "ratio", "peak MiB"):
        table.add_column(column, justify="right", no_wrap=True)
    with (
        tempfile.TemporaryDirectory(prefix="headwater-bench-", dir=arguments.scratch) as scratch,
        KafkaBroker(Path(scratch) / "kafka", Path(scratch) / "broker", compaction=False, fast=True) as broker,
    ):
        broker.create_topic(TOPIC, arguments.partitions)
        address, properties = BrokerAddress.parse(broker.bootstrap), load_client_properties(None)
        connection = BrokerConnection(address, properties)
        cluster_id = LogDirs([broker.log_dir]).cluster_id
        client = BrokerClient([address], properties, cluster_id=lambda: cluster_id, node_id=lambda: 1, clock=SystemClock())
        made = 0
        for count in map(int, arguments.groups.split(",")):
            commit(connection, [f"group-{number:05}" for number in range(made, count)], arguments.partitions)
            made = count
            table.add_row(*row(client, broker.bootstrap, count, count * arguments.partitions, arguments.rounds))
        client.close()
        connection.close()
    Console(width=120).print(table)


def row(client: BrokerClient, bootstrap: str, groups: int, commits: int, rounds: int) -> tuple[str, ...]:
    ours, cpu, javas = list[float](), list[float](), list[float]()
    known: list[str] = []
    for at in range(rounds + 1):
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        found = client.groups(known)
        took_s, cpu_s = time.perf_counter() - start_s, time.process_time() - start_cpu_s
        assert (len(found), sum(len(group.commits) for group in found)) == (groups, commits)
        known = [group.name for group in found]
        [answer] = java_client().request("groups", bootstrap)
        assert (answer["groups"], answer["commits"]) == (groups, commits)
        if at:  # the first round warms both
            ours.append(took_s)
            cpu.append(cpu_s)
            javas.append(answer["took_ms"] / 1000)
    tracemalloc.start()
    found = client.groups(known)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    ratio = statistics.median(ours) / statistics.median(javas)
    return f"{groups:,}", f"{commits:,}", spread(ours), spread(cpu), spread(javas), f"{ratio:.1f}x", f"{(peak - kept) / (1 << 20):.1f}"


if __name__ == "__main__":
    main()
