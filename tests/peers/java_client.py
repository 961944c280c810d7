"""Java's side of the peer tests: Maven fetches jars once, javac compiles one class, and one JVM serves all requests of a test process:
most of what a short-lived one does is to start. Here are what does that, and the Java client of Kafka."""

import atexit
import json
import os
import subprocess
import threading
import time
import zlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from recovery.kafka_releases import NEWEST
from tests.peers.cache import fetched

_HERE = Path(__file__).parent
_PATIENCE_S = 120
_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m")  # quick to start, for programs that do little


KAFKA = os.environ.get("KAFKA_RELEASE", NEWEST)  # of the brokers, their tools and the Java client
_VERSIONS = {"4.3": "4.3.1", "4.4": "4.4.0"}


@cache
def kafka_jars(release: str = KAFKA) -> str:
    """A class path. The first call fetches 55 MB; later ones look once."""
    return jars_of("pom.xml", f"-Dkafka.version={_VERSIONS[release]}")


def jars_of(pom: str, *options: str) -> str:
    """A class path of what the file `pom` beside this one names, fetched again when that or `options` change."""
    source = _HERE / pom

    def fetch(into: Path) -> None:
        command = ["mvn", "-B", "-q", *options, "-f", str(source), "dependency:copy-dependencies", f"-DoutputDirectory={into}"]
        subprocess.run(command, check=True, timeout=600)

    contents = source.read_bytes() + " ".join(options).encode()
    return f"{fetched(f'jars-{source.stem}-{zlib.crc32(contents):08x}', fetch)}/*"


@cache
def class_path() -> str:
    """Kafka's jars and the compiled Peer class."""
    return with_compiled("Peer", kafka_jars(), "Records")


def with_compiled(main: str, jars: str, *others: str) -> str:
    """The class path `jars` with the class `main` before it, and `others` that it uses, compiled from their sources beside this file."""
    sources = [_HERE / f"{name}.java" for name in (main, *others)]

    def compile_into(classes: Path) -> None:
        subprocess.run(["javac", "-cp", jars, "-d", str(classes), *map(str, sources)], check=True, timeout=_PATIENCE_S)

    contents = b"".join(source.read_bytes() for source in sources)
    classes = fetched(f"classes-{zlib.crc32(contents + jars.encode()):08x}", compile_into)
    return f"{classes}:{jars}"


class JavaClient:
    """A class that answers requests, in a JVM of its own: one after another."""

    def __init__(self, main: str, path: str) -> None:
        self._command = ["java", *_JVM, "-cp", path, main]
        self._process = self._started()

    def _started(self) -> subprocess.Popen[str]:
        return subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def request(self, *arguments: str) -> list[dict[str, Any]]:
        """The lines of the answer. Raises AssertionError with the reason when the request fails, or takes more than two minutes."""
        if self._process.poll() is not None:  # the request before took too long: that failed, and this one need not
            self._process = self._started()
        assert self._process.stdin
        assert self._process.stdout
        impatience = threading.Timer(_PATIENCE_S, self._process.kill)
        impatience.start()
        try:
            print(*arguments, sep="\t", file=self._process.stdin, flush=True)
            lines = []
            while (line := self._process.stdout.readline()).startswith("{"):
                lines.append(json.loads(line))
        finally:
            impatience.cancel()
            impatience.join()
        if line != "done\n":
            raise AssertionError(f"{' '.join(arguments)}: {line.replace('|', chr(10)) or 'the JVM ended'}")
        return lines

    def close(self) -> None:
        """Ends the JVM, which it takes from the end of its input."""
        self._process.communicate()


@cache
def java_client() -> JavaClient:
    """One for this process, and as long as that."""
    client = JavaClient("Peer", class_path())
    atexit.register(client.close)
    return client


def console_consume(bootstrap: str, topic: str, *arguments: str) -> str:
    """All that kafka-console-consumer prints, records included; it ends by itself when it fails."""
    tool = ["java", *_JVM, "-cp", class_path(), "org.apache.kafka.tools.consumer.ConsoleConsumer"]
    command = [*tool, "--bootstrap-server", bootstrap, "--topic", topic, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_PATIENCE_S)
    return done.stdout.decode(errors="replace")


def dump_log(files: Iterable[Path]) -> str:
    """All that kafka-dump-log prints of segments and indexes, every record of the former decoded and the latter's sanity checked."""
    tool = ["java", *_JVM, "-cp", kafka_jars(), "org.apache.kafka.tools.DumpLogSegments", "--deep-iteration", "--index-sanity-check"]
    command = [*tool, "--files", ",".join(map(str, files))]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=_PATIENCE_S).stdout


class JavaRead:
    """What the Java consumer saw: records in the shape of the expected files, and (start, end) per (topic, partition).

    The end is the high watermark, or the last stable offset under read_committed.
    """

    def __init__(self, lines: list[dict[str, Any]]) -> None:
        self.bounds = {(line["topic"], line["partition"]): (line["start"], line["end"]) for line in lines if "bounds" in line}
        records = [line for line in lines if "bounds" not in line]
        self.records = sorted(records, key=lambda line: (line["topic"], line["partition"], line["offset"]))


class Coordinated(NamedTuple):
    """What coordinators hold, in the shape of the fixtures' cluster files, sorted by name."""

    groups: list[dict[str, Any]]
    transactions: list[dict[str, Any]]
    quotas: list[dict[str, Any]]


def java_coordinated(bootstrap: str) -> Coordinated:
    """Groups with type, state and committed offsets, transactional ids, and quotas, as the Java admin client sees them."""
    lines = java_client().request("coordinated", bootstrap)

    def of(name: str) -> list[dict[str, Any]]:
        return sorted((line for line in lines if name in line), key=lambda line: str(line[name]))

    return Coordinated(of("group"), of("transactional_id"), of("entity"))


def wait_for_markers(bootstrap: str) -> None:
    """Until each transaction that was ended has its markers: a coordinator answers before."""
    until_s = time.monotonic() + _PATIENCE_S
    while pending := [each for each in java_coordinated(bootstrap).transactions if each["state"].startswith("Prepare")]:
        assert time.monotonic() < until_s, pending
        time.sleep(0.1)


def java_configs(bootstrap: str) -> list[dict[str, Any]]:
    """The settings of its own that each topic, broker, group and client-metrics subscription has, and what all brokers have ("")."""
    return sorted(java_client().request("configs", bootstrap), key=lambda line: (line["type"], line["name"]))


def java_consume(bootstrap: str, topics: Iterable[str], isolation: str) -> JavaRead:
    """Everything in `topics`, as the Java consumer with check.crcs reads it from the earliest offset to the end."""
    return JavaRead(java_client().request("read", bootstrap, isolation, ",".join(topics)))


def java_seek(
    bootstrap: str, topic: str, partition: int, offset: int, count: int, isolation: str = "read_uncommitted"
) -> list[dict[str, Any]]:
    """The first `count` records at or past `offset`."""
    return java_client().request("seek", bootstrap, isolation, topic, str(partition), str(offset), str(count))


def java_offsets_for_times(bootstrap: str, topic: str, partition: int, timestamps: Iterable[int]) -> list[dict[str, Any]]:
    """Per timestamp: `asked`, and `offset` and `timestamp` of the first record at or past it (None when there is none)."""
    return java_client().request("times", bootstrap, topic, str(partition), ",".join(map(str, timestamps)))
