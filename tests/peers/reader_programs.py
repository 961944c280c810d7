"""Small programs, each with another client library of Kafka, which all do the same. A line of stdout is a record, in the shape of the
expected files as far as the library has its fields, or as below. They read

    read BOOTSTRAP ISOLATION FROM TOPIC:PARTITION:END...   from "beginning", or the first record that is not older than FROM, in ms, until
                                                           the record before the offset END has come

or are members of a group, which begins at the start of a log where it has not committed:

    join BOOTSTRAP ISOLATION GROUP TOPIC PROTOCOL [INSTANCE]

PROTOCOL is classic, or consumer (KIP-848); a static member has an instance id.

A member prints {"partitions": [...]} whenever partitions are assigned or revoked: all that it has. Lines of stdin are requests: "take N" is
for that many records, of any partitions; {"committed": true} follows when all are committed. "end", or the end of stdin, is to leave.
"""

import base64
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

from tests.fixtures import Isolation
from tests.headwater.gateway.readers import Rows, in_order, text
from tests.peers.cache import fetched
from tests.peers.java_client import jars_of, kafka_jars, with_compiled

FIELDS = {"topic", "partition", "offset", "timestamp", "key", "value", "headers"}  # that each library has
BOTH = ("classic", "consumer")
_HERE = Path(__file__).parent
_PATIENCE_S = 90.0
_CHANGED = threading.Condition()  # what any of them has printed


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """
    command     what is run, with the arguments above
    protocols   of groups, that the library has
    static      protocols by which a static member comes back at once
    isolations  that it keeps
    """

    command: Callable[[], Sequence[str]]
    protocols: tuple[str, ...] = ("classic",)
    static: tuple[str, ...] = ("classic",)
    isolations: tuple[Isolation, ...] = ("read_uncommitted", "read_committed")

    @property
    def isolation(self) -> Isolation:
        """Of members of groups."""
        return self.isolations[-1]


def _java(jars: Callable[[], str]) -> Callable[[], Sequence[str]]:
    options = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
    return cache(lambda: ("java", *options, "-cp", with_compiled("Reader", jars(), "Records"), "Reader"))


@cache
def _go() -> Path:
    """Where the programs are that were built of each package in `go` beside this file."""
    source = _HERE / "go"
    contents = b"".join(path.read_bytes() for path in sorted(source.rglob("*")) if path.is_file())

    def build(into: Path) -> None:
        subprocess.run(["go", "build", "-buildvcs=false", "-o", f"{into}/", "./..."], cwd=source, check=True, timeout=600)

    return fetched(f"go-{zlib.crc32(contents):08x}", build)


@cache
def _js() -> Path:
    """Where the program is, with what it needs."""
    files = [_HERE / "js" / name for name in ("package.json", "package-lock.json", "reader.js")]

    def install(into: Path) -> None:
        into.mkdir()
        for file in files:
            shutil.copy(file, into)
        subprocess.run(["npm", "ci", "--silent", "--ignore-scripts"], cwd=into, check=True, timeout=600)

    return fetched(f"js-{zlib.crc32(b''.join(file.read_bytes() for file in files)):08x}", install)


def _python(library: str) -> Callable[[], Sequence[str]]:
    return lambda: (sys.executable, str(_HERE / "python_readers.py"), library)


PROGRAMS: Mapping[str, Program] = {
    "kafka-clients 2.8": Program(command=_java(lambda: jars_of("old_clients.xml"))),
    "kafka-clients": Program(command=_java(kafka_jars), protocols=BOTH, static=BOTH),
    # A static member of franz-go 1.22 by KIP-848 gets its partitions back when its session times out, whoever answers it.
    "franz-go": Program(command=lambda: [str(_go() / "franz")], protocols=BOTH),
    "sarama": Program(command=lambda: [str(_go() / "sarama")]),
    # KafkaJS 2.2 has no static members, and shows some records of aborted transactions, whoever answers it.
    "kafkajs": Program(command=lambda: ["node", str(_js() / "reader.js")], static=(), isolations=("read_uncommitted",)),
    "librdkafka": Program(command=_python("librdkafka"), protocols=BOTH, static=BOTH),
    "aiokafka": Program(command=_python("aiokafka")),
}


class Running:
    """One of the programs, ended at the end. What it has printed is taken in as it comes."""

    def __init__(self, program: Program, *arguments: str) -> None:
        self.records: Rows = []
        self.assignments: list[list[int]] = []
        self.is_running = True  # it may still print
        self._commits = 0
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed at the end of this
        self._command = [*program.command(), *arguments]
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True)
        self._reading = threading.Thread(target=self._read, name=f"output of {self._command[0]}")
        self._reading.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        self._errors.close()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            found = json.loads(line)
            with _CHANGED:
                if "partitions" in found:
                    self.assignments.append(found["partitions"])
                elif "committed" in found:
                    self._commits += 1
                else:
                    self.records.append(_as_expected(found))
                _CHANGED.notify_all()
        with _CHANGED:
            self.is_running = False
            _CHANGED.notify_all()

    @property
    def partitions(self) -> list[int]:
        """What is assigned to it now."""
        return self.assignments[-1] if self.assignments else []

    def take(self, count: int) -> None:
        """Let it read and commit so many."""
        if count:
            before = self._commits
            self._request(f"take {count}")
            wait_for(lambda: self._commits > before, self)

    def _request(self, line: str) -> None:
        assert self._process.stdin
        print(line, file=self._process.stdin, flush=True)

    def end(self) -> None:
        """Let it leave, and wait until it has."""
        self._request("end")
        self.wait()

    def wait(self) -> None:
        """Until it has ended by itself. Raises AssertionError when that is a failure."""
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(self.failure()) from None
        self._reading.join()
        assert self._process.returncode == 0, self.failure()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reading.join()

    def failure(self) -> str:
        """How far it has come, and what it complains of."""
        self._errors.seek(0)
        last = [(each["topic"], each["partition"], each["offset"]) for each in self.records[-3:]]
        printed = f"{len(self.records)} records, the last {last}, assigned {self.assignments}"
        return f"{self._command} ended with {self._process.poll()}: {printed}\n{self._errors.read()[-4000:]}"


def wait_for(condition: Callable[[], bool], *programs: Running) -> None:
    """Until it holds, of what the programs have printed. Raises AssertionError when one of them ends before."""
    with _CHANGED:
        _CHANGED.wait_for(lambda: condition() or not all(each.is_running for each in programs), _PATIENCE_S)
        assert condition(), "\n\n".join(each.failure() for each in programs)


def _as_expected(record: dict[str, Any]) -> dict[str, Any]:
    """Programs print keys and values whole, but for Java's."""
    shown = {field: text(base64.b64decode(record[field])) for field in ("key", "value") if isinstance(record[field], str)}
    return {**record, **shown}


def read(program: Program, address: str, isolation: Isolation, ends: Mapping[tuple[str, int], int], start: str = "beginning") -> Rows:
    """All records up to `ends`, by topic, partition and offset."""
    places = [f"{topic}:{partition}:{end}" for (topic, partition), end in ends.items()]
    with Running(program, "read", address, isolation, start, *places) as running:
        running.wait()
        return in_order(running.records)


def join(program: Program, address: str, group: str, topic: str, protocol: str, instance: str = "") -> Running:
    more = (instance,) if instance else ()
    return Running(program, "join", address, program.isolation, group, topic, protocol, *more)


def in_fields(wanted: Rows, found: Rows) -> Rows:
    """`wanted` in no more fields than were found, and with headers by name where those were: not all libraries have the others."""
    assert all(each.keys() >= FIELDS for each in found)
    rows = [{field: each[field] for field in each if field in found[0]} for each in wanted]
    if isinstance(found[0]["headers"], dict):
        for row in rows:
            row["headers"] = {name: [value for other, value in row["headers"] if other == name] for name, _ in row["headers"]}
    return rows
