"""A Kafka Streams application that counts the records of each key, exactly once (Counter.java)."""

import subprocess
import time
from base64 import b64decode
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.peers.java_client import java_consume, kafka_jars, with_compiled

PATIENCE_S = 120


@contextmanager
def counting(bootstrap: str, work: Path, commit_ms: int, source: str = "in", sink: str = "out") -> Iterator[None]:
    """The application, killed at the end, with a state directory of its own."""
    work.mkdir()
    program = ["java", "-XX:TieredStopAtLevel=1", "-Xmx256m", "-cp", with_compiled("Counter", kafka_jars()), "Counter"]
    with (work / "output").open("wb") as output:
        command = [*program, bootstrap, str(work / "state"), source, sink, str(commit_ms)]
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield
        assert process.poll() is None, (work / "output").read_text()[-4000:]
    finally:
        process.kill()
        process.wait()


def counts(bootstrap: str, isolation: str, sink: str = "out") -> dict[bytes, list[int]]:
    """Of each key, in the order in which they were written."""
    found = defaultdict(list)
    for record in java_consume(bootstrap, [sink], isolation).records:
        found[b64decode(record["key"])].append(int.from_bytes(b64decode(record["value"]), "big"))
    return found


def wait_for_counts(bootstrap: str, expected: Counter[bytes], isolation: str = "read_committed") -> None:
    until_s = time.monotonic() + PATIENCE_S
    while {key: max(found) for key, found in counts(bootstrap, isolation).items()} != expected:
        assert time.monotonic() < until_s, (counts(bootstrap, isolation), expected)
        time.sleep(0.5)


def wait_for_total(bootstrap: str, total: int, isolation: str, sink: str) -> None:
    """Until so many counts are written."""
    until_s = time.monotonic() + PATIENCE_S
    while (found := sum(map(len, counts(bootstrap, isolation, sink).values()))) < total:
        assert time.monotonic() < until_s, (found, total)
        time.sleep(0.5)
