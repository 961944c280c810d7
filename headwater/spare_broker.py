"""A Kafka broker that is started on a recovered directory, for a drill: on this machine's loopback alone, behind a password that is made up
each time. It deletes and compacts no records. What coordinators and leaders would forget by their expiry settings, it forgets at once."""

import ctypes
import os
import secrets
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from headwater.broker.broker_connection import BrokerAddress
from headwater.broker.client_properties import ClientProperties
from headwater.broker.log_reader import LogReader
from headwater.broker.running_admin import RunningKafkaAdmin
from headwater.drill.equipment import SpareBroker
from headwater.drill.metadata_check import expiry_settings
from headwater_core.errors import TransientError, UsageError, VerificationFailed
from headwater_core.files import disk_errors, replace_file
from headwater_core.partition import TopicPartition
from recovery import RecoveryPlan

READY_S = 120.0  # a broker reads the last segment of each partition when it starts
STOP_S = 60.0
LOOK_S = 0.25
TRIES = 3  # with other ports: another process may take one first
USER = "drill"
OUTPUT_BYTES_SHOWN = 2000
LONG_MS = 365 * 86_400_000  # no drill takes so long
CHECK_MS = 1000  # between two looks for what has expired, or timed out
PORT_TAKEN = "Address already in use"
_SHORTAGES = (  # of this machine, in the output of a broker that ended: they say nothing about what was restored
    PORT_TAKEN,
    "OutOfMemoryError",
    "insufficient memory",
    "Cannot allocate memory",
    "unable to create native thread",
    "No space left on device",
    "Disk quota exceeded",
    "Too many open files",
    "Read-only file system",
    "Permission denied",
    "Operation not permitted",
)

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)

log = structlog.get_logger()


def find_java() -> str | None:
    """The program; None where there is none."""
    home = os.environ.get("JAVA_HOME")
    if home and os.access(Path(home) / "bin" / "java", os.X_OK):
        return str(Path(home) / "bin" / "java")
    return shutil.which("java")


def check_kafka_home(home: Path) -> Path:
    """`home`, when it is an unpacked Kafka. Raises UsageError."""
    if not any((home / "libs").glob("kafka-server-*.jar")) and not any((home / "libs").glob("kafka_*.jar")):
        raise UsageError(f"{home} is no unpacked Kafka: it has no libs/kafka_….jar")
    return home


@contextmanager
def running_broker(java: str, kafka_home: Path, log_dir: Path, work_dir: Path, plan: RecoveryPlan) -> Iterator[SpareBroker]:
    """For the time of the block; it is killed when this process is. Raises VerificationFailed when a broker that can run here ends by
    itself on what was restored; DiskFull, Unauthorised and TransientError when this machine starts none, or it serves too late."""
    _check_java(java, kafka_home, work_dir)
    for attempt in range(TRIES):
        client, controller = _free_ports()
        password = secrets.token_urlsafe(24)
        properties = ClientProperties(security_protocol="SASL_PLAINTEXT", mechanism="PLAIN", username=USER, password=password)
        settings = work_dir / "server.properties"
        replace_file(settings, _properties(plan, log_dir, client, controller, password).encode(), mode=0o600)  # a password is in it
        output = work_dir / "broker.out"
        process = _spawn(java, kafka_home, work_dir, output, str(settings))
        try:
            reader = _wait(
                process, plan, f"kafka {_version(kafka_home)}".strip(), client, properties, output, has_tries=attempt + 1 < TRIES
            )
            if reader is None:
                continue
            try:
                log.info("spare_broker_started", path=str(log_dir), pid=process.pid)
                with RunningKafkaAdmin([BrokerAddress("127.0.0.1", client)], properties) as coordinators:
                    yield SpareBroker(reader, coordinators)
            finally:
                reader.close()
            return
        finally:
            _stop(process)


def _spawn(java: str, kafka_home: Path, work_dir: Path, output: Path, argument: str) -> "subprocess.Popen[bytes]":
    """Raises DiskFull, Unauthorised, TransientError."""
    with disk_errors(java), output.open("wb") as to:
        try:
            return subprocess.Popen(
                [java, *_JVM, "-cp", f"{kafka_home / 'libs'}/*", "kafka.Kafka", argument],
                stdin=subprocess.DEVNULL,
                stdout=to,
                stderr=subprocess.STDOUT,
                cwd=work_dir,
                env={**os.environ, "LOG_DIR": str(work_dir)},
                start_new_session=True,  # Ctrl-C is for us, who stop it
                preexec_fn=_die_with_parent,
            )
        except subprocess.SubprocessError as error:
            raise TransientError(f"{java} cannot be started: {error}") from error


def _check_java(java: str, kafka_home: Path, work_dir: Path) -> None:
    """Start and end the same program without what was restored, so that a machine on which no broker runs is not taken for damage: too
    little memory, pages that may not be executed, an old Java, a Kafka that lacks files. Raises TransientError."""
    output = work_dir / "java.out"
    process = _spawn(java, kafka_home, work_dir, output, "--version")
    try:
        code = process.wait(READY_S)
    except subprocess.TimeoutExpired as error:
        raise TransientError(f"{java} has not started Kafka within {READY_S:g} s") from error
    finally:
        _stop(process)
    if code:
        raise TransientError(f"{java} does not run Kafka on this machine, exit code {code}: {_end_of(output)}")


def _end_of(output: Path) -> str:
    with disk_errors(output):
        return output.read_bytes()[-OUTPUT_BYTES_SHOWN:].decode("utf-8", "replace").strip()


_JVM = ("-Xms256m", "-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dkafka.logs.dir=.")


def _properties(plan: RecoveryPlan, log_dir: Path, client: int, controller: int, password: str) -> str:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    jaas = f'{module} required username="{USER}" password="{password}" user_{USER}="{password}";'
    settings = {
        "process.roles": "broker,controller",
        "node.id": plan.node_id,
        "controller.quorum.voters": f"{plan.node_id}@127.0.0.1:{controller}",
        "listeners": f"DRILL://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"DRILL://127.0.0.1:{client}",
        "listener.security.protocol.map": "DRILL:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "inter.broker.listener.name": "DRILL",
        "controller.listener.names": "CONTROLLER",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.drill.plain.sasl.jaas.config": jaas,
        "listener.name.controller.plain.sasl.jaas.config": jaas,
        "log.dirs": log_dir.resolve(),
        "log.cleaner.enable": "false",
        "log.retention.ms": -1,
        "log.retention.bytes": -1,
        "log.retention.check.interval.ms": LONG_MS,
        "log.initial.task.delay.ms": LONG_MS,
        **expiry_settings(log_dir, plan.node_id),
        "offsets.retention.check.interval.ms": CHECK_MS,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": CHECK_MS,
        "transaction.remove.expired.transaction.cleanup.interval.ms": CHECK_MS,
        "producer.id.expiration.check.interval.ms": CHECK_MS,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "auto.create.topics.enable": "false",
        "delete.topic.enable": "false",
        "num.network.threads": 1,
        "num.io.threads": 2,
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def _wait(
    process: "subprocess.Popen[bytes]",
    plan: RecoveryPlan,
    name: str,
    port: int,
    properties: ClientProperties,
    output: Path,
    *,
    has_tries: bool,
) -> LogReader | None:
    """A reader, once every partition has a leader; None when another process was quicker to take a port."""
    waiting, passed_s = threading.Event(), 0.0
    while passed_s < READY_S:
        if process.poll() is not None:
            code, end = process.returncode, _end_of(output)
            if has_tries and PORT_TAKEN in end:
                return None
            is_ours = code < 0 or code > 128 or any(shortage in end for shortage in _SHORTAGES)  # a signal ended it, or a shortage
            raise (TransientError if is_ours else VerificationFailed)(f"the broker ended with exit code {code}: {end[-600:]}")
        reader = None
        try:
            reader = LogReader(name, [BrokerAddress("127.0.0.1", port)], properties)
            if _serves(reader, plan):
                return reader
        except TransientError:
            pass  # not listening yet
        if reader is not None:
            reader.close()
        waiting.wait(LOOK_S)
        passed_s += LOOK_S
    raise TransientError(f"the broker did not serve every partition within {READY_S:g} s")


def _serves(reader: LogReader, plan: RecoveryPlan) -> bool:
    """Does each partition have a leader, which knows that it is one?"""
    if not all(reader.leads(topic.topic, len(topic.partitions)) for topic in plan.topics):
        return False
    places = [TopicPartition(topic.topic, each.partition) for topic in plan.topics for each in topic.partitions]
    return len(reader.ends(places)) == len(places)


def _version(kafka_home: Path) -> str:
    """By the name of a jar; "" where that says nothing."""
    found = sorted((kafka_home / "libs").glob("kafka-clients-*.jar"))
    return found[-1].stem.removeprefix("kafka-clients-")[:20] if found else ""


def _stop(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1]), int(other.getsockname()[1])


def _die_with_parent() -> None:
    """In the child, between fork and exec: SIGKILL when we end, however that is."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
