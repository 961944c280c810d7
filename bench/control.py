"""The control log of a large cluster: what its state takes in memory, how long a snapshot stops it, and how long a restart takes.

    python -m bench.control [--partitions 100000] [--scratch DIR]

Topics have 100 partitions; a command announces 500 partitions, as agents do. Each life of the node is a process of its own, so that its
memory is its own too: what the program itself takes is the first row.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.table import Table

from headwater_core.control.control_records import Advanced
from headwater_core.control.node import ControlNode
from headwater_core.partition import topic_id_text

AIMS = "aims for 100,000 partitions: 200 MiB, a snapshot and a restart in seconds"
OF_A_TOPIC = 100
AT_ONCE = 500
READY_S = 120.0


def announcements(partitions: int, version: int) -> Iterator[Advanced]:
    for number in range(partitions):
        topic = number // OF_A_TOPIC
        yield Advanced(
            cluster_id="AAAAAAAAAAAAAAAAAAAAAA",
            topic_id=topic_id_text(topic.to_bytes(16)),
            partition=number % OF_A_TOPIC,
            topic=f"team-{topic % 40}.orders.placed-{topic}",
            version=version,
            fence=1 + topic % 7,
            writer=f"broker-{number % 9}-0123abcd",
            start_offset=0,
            last_offset=1_000_000 * version + number,
        )


def live(data_dir: Path, partitions: int, rounds: int) -> dict[str, Any]:
    """One life: start, announce everything `rounds` times, write a snapshot, look up, stop."""
    began_s = perf_counter()
    node = ControlNode(data_dir)
    if not node.ready(READY_S):
        raise TimeoutError("the node is not ready")
    ready_s = perf_counter() - began_s
    known = sum(1 for _ in node.state().partitions())
    first = max((state.manifest_version for _, state in islice(node.state().partitions(), 1)), default=0)
    began_s, commands, slowest_s = perf_counter(), 0, 0.0
    for version in range(first + 1, first + 1 + rounds):
        records = announcements(partitions, version)
        while batch := list(islice(records, AT_ONCE)):
            call_s = perf_counter()
            node.publish(*batch)
            slowest_s = max(slowest_s, perf_counter() - call_s)
            commands += 1
    publish_s = perf_counter() - began_s
    began_s = perf_counter()
    node.compact()
    node.publish(next(announcements(1, 1)))  # answered after the snapshot
    snapshot_s = perf_counter() - began_s
    began_s = perf_counter()
    digest = node.state().digest()
    digest_s = perf_counter() - began_s
    memory = Path("/proc/self/status").read_text()
    node.close()
    return {
        "partitions": known,
        "ready_s": ready_s,
        "commands": commands,
        "publish_s": publish_s,
        "slowest_s": slowest_s,
        "snapshot_s": snapshot_s,
        "digest_s": digest_s,
        "digest": digest,
        "rss_bytes": _kib(memory, "VmRSS") * 1024,
        "peak_bytes": _kib(memory, "VmHWM") * 1024,
        "file_bytes": sum(path.stat().st_size for path in (data_dir / "control").iterdir()),
    }


def _kib(status: str, name: str) -> int:
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(f"{name}:"))


def in_a_process(data_dir: Path, partitions: int, rounds: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.control", "--life", str(data_dir), "--partitions", str(partitions), "--rounds", str(rounds)]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=100_000)
    parser.add_argument("--scratch", type=Path)
    parser.add_argument("--life", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.life:
        print(json.dumps(live(given.life, given.partitions, given.rounds)))
        return
    table = Table(title="control log, one node", caption=AIMS)
    for title in (
        "life",
        "partitions",
        "ready s",
        "commands",
        "each ms",
        "slowest ms",
        "snapshot s",
        "digest s",
        "MiB",
        "peak MiB",
        "files MiB",
    ):
        table.add_column(title, justify="left" if title == "life" else "right")
    with tempfile.TemporaryDirectory(dir=given.scratch) as scratch:
        empty, full = Path(scratch) / "empty", Path(scratch) / "full"
        for path in (empty, full):
            path.mkdir()
        for name, path, count, rounds in (
            ("empty", empty, 1, 0),
            ("announced twice", full, given.partitions, 2),
            ("started again", full, given.partitions, 0),
            ("announced again", full, given.partitions, 1),
        ):
            found = in_a_process(path, count, rounds)
            each_ms = 1000 * found["publish_s"] / found["commands"] if found["commands"] else 0.0
            table.add_row(
                name,
                str(found["partitions"]),
                f"{found['ready_s']:.2f}",
                str(found["commands"]),
                f"{each_ms:.1f}",
                f"{1000 * found['slowest_s']:.0f}",
                f"{found['snapshot_s']:.2f}",
                f"{found['digest_s']:.2f}",
                *(f"{found[key] / (1 << 20):.0f}" for key in ("rss_bytes", "peak_bytes", "file_bytes")),
            )
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
