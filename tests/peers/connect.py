"""A standalone worker of Kafka Connect with file connectors."""

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.peers.java_client import jars_of
from tests.peers.kafka import free_port

_STRINGS = "org.apache.kafka.connect.storage.StringConverter"


@contextmanager
def connecting(bootstrap: str, work: Path, connectors: Mapping[str, Mapping[str, object]]) -> Iterator[None]:
    """The worker, with what it knows of files in `work`; it is stopped in good order. Bytes are read as characters of ISO 8859-1."""
    work.mkdir(exist_ok=True)
    worker = {
        "bootstrap.servers": bootstrap,
        "listeners": f"http://127.0.0.1:{free_port()}",
        "key.converter": _STRINGS,
        "value.converter": _STRINGS,
        "value.converter.converter.encoding": "ISO-8859-1",
        "offset.storage.file.filename": work / "offsets",
    }
    command = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-cp", jars_of("connect.xml")]
    command += ["org.apache.kafka.connect.cli.ConnectStandalone", _properties(work / "worker", worker)]
    command += [_properties(work / name, {"name": name, **settings}) for name, settings in connectors.items()]
    with (work / "output").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield
        assert process.poll() is None, (work / "output").read_text()[-4000:]
        process.terminate()
        process.wait(60)
    finally:
        process.kill()
        process.wait()


def file_sink(topic: str, file: Path) -> Mapping[str, object]:
    return {"connector.class": "FileStreamSink", "topics": topic, "file": file}


def file_source(file: Path, topic: str) -> Mapping[str, object]:
    return {"connector.class": "FileStreamSource", "topic": topic, "file": file}


def _properties(path: Path, settings: Mapping[str, object]) -> str:
    path.with_suffix(".properties").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return str(path.with_suffix(".properties"))
