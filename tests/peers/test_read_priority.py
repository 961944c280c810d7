"""The four read priorities beside a live broker, each tier broken in turn, changed while all goes on."""

import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from hydration.config import ReadPriority
from tests.headwater.gateway.raw import RawClient, a_fetch
from tests.peers.agent import OFTEN, ROOT, Agent, Headwater
from tests.peers.kafka import KafkaBroker, produce

pytestmark = [pytest.mark.peer, pytest.mark.slow]

TOPIC = "acme.orders.placed"
PATIENCE_S = 60.0
Breakage = Callable[[], AbstractContextManager[None]]


class View:
    """The broker's log directory as the agent sees it, which may break there while the broker works on."""

    def __init__(self, log_dir: Path, root: Path) -> None:
        self._log_dir, self.root = log_dir, root
        root.mkdir()
        self.refresh()

    def refresh(self) -> None:
        for each in self._log_dir.iterdir():
            if not (self.root / each.name).is_symlink():
                (self.root / each.name).symlink_to(each)

    @contextmanager
    def gone(self) -> Iterator[None]:
        here = self.root / f"{TOPIC}-0"
        here.unlink()
        yield
        here.symlink_to(self._log_dir / here.name)

    @contextmanager
    def damaged(self) -> Iterator[None]:
        """Every byte of its segments; the broker's own files are as they were."""
        with self._copied() as aside:
            for segment in aside.glob("*.log"):
                segment.write_bytes(b"\xff" * segment.stat().st_size)
            yield

    @contextmanager
    def forbidden(self) -> Iterator[None]:
        with self._copied() as aside, forbidden(aside):
            yield

    @contextmanager
    def _copied(self) -> Iterator[Path]:
        """Instead of the broker's own, which works on."""
        here, aside = self.root / f"{TOPIC}-0", self.root.with_name("copied")
        shutil.copytree(self._log_dir / here.name, aside)
        here.unlink()
        here.symlink_to(aside)
        yield aside
        here.unlink()
        here.symlink_to(self._log_dir / here.name)
        shutil.rmtree(aside)


@contextmanager
def moved(path: Path) -> Iterator[None]:
    aside = path.with_name(path.name + "+aside")
    path.rename(aside)
    yield
    aside.rename(path)


@contextmanager
def forbidden(path: Path) -> Iterator[None]:
    mode = path.stat().st_mode
    path.chmod(0)
    yield
    path.chmod(mode)


@contextmanager
def damaged(folder: Path) -> Iterator[None]:
    before = {path: path.read_bytes() for path in folder.rglob("*.log")}
    assert before
    for path, content in before.items():
        path.write_bytes(b"\xff" * len(content))
    yield
    for path, content in before.items():
        path.write_bytes(content)


def read_values(address: str, count: int, until_s: float) -> list[bytes | None]:
    """Of the first `count` records, as a consumer at offset 0 gets them. What the gateway found damaged it believes to be so for some
    seconds more, and its consumers get an error. Where the log ends is not asked: while the local log cannot be read, that is not known."""
    settings = {"auto.offset.reset": "error", "enable.auto.commit": False, "fetch.wait.max.ms": 50, "log_level": 2}
    consumer = Consumer({"bootstrap.servers": address, "group.id": "reader", "check.crcs": True, **settings})
    values, errors = list[bytes | None](), list[str]()
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        while len(values) < count:
            assert time.monotonic() < until_s, f"{len(values)} of {count} records, and {errors[-1:]}"
            message = consumer.poll(0.5)
            if message is None:
                continue
            if message.error() is None:
                values.append(message.value())
            else:
                errors.append(str(message.error()))
    finally:
        consumer.close()
    return values


def test_first_falls_back_and_only_never_does_beside_a_live_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("HYDRATION_CACHE_BYTES", "0"), ("GATEWAY_STORAGE_WAIT", "1s")):  # what was read before must not answer
        monkeypatch.setenv(f"HEADWATER_{name}", value)
    rng = random.Random(5)
    with KafkaBroker(tmp_path / "kafka", tmp_path / "broker") as broker:
        broker.create_topic(TOPIC, 1, internal_segment_bytes=4096)
        producer, written = broker.producer(), list[bytes]()

        def write() -> None:
            values = [rng.randbytes(200) for _ in range(5)]
            produce(producer, TOPIC, values)
            written.extend(values)

        for _ in range(6):
            write()
        view = View(tmp_path / "kafka", tmp_path / "view")
        headwater = Headwater(tmp_path / "headwater", view.root, archival=OFTEN, log=f'bootstrap_servers = "{broker.bootstrap}"')

        def verb(*arguments: str) -> str:
            command = [sys.executable, "-c", "from headwater.cli import main; main()", "--config", str(headwater.file), *arguments]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=ROOT)
            assert done.returncode == 0, done.stderr
            return done.stdout

        with Agent(headwater, is_plain=True) as agent:
            address = agent.address()
            host, _, port = address.rpartition(":")
            agent.caught_up({(TOPIC, 0): len(written)})

            def is_read(*, expected: bool = True) -> bool:
                """All that was written and archived, in order, where the first record is read at all. What the gateway knows may be some
                seconds old."""
                until_s, got = time.monotonic() + PATIENCE_S, not expected
                with RawClient((host, int(port))) as client:
                    while got is not expected and time.monotonic() < until_s:
                        got = bool(client.fetch(a_fetch((TOPIC, 0, 0), max_wait=500))["records"])
                if not got:
                    return False
                assert read_values(address, len(written), until_s) == written
                return True

            bucket = headwater.bucket
            local: tuple[Breakage, ...] = (view.gone, view.damaged, view.forbidden)
            archive: tuple[Breakage, ...] = (lambda: moved(bucket), lambda: damaged(bucket / "data"), lambda: forbidden(bucket))
            for each in ReadPriority:
                verb("namespaces", "--set-tiered-read-priority", "acme/orders", each.name)
                assert is_read(), f"{each}: nothing is broken"
            for name, breakages in (("local", local), ("offloaded", archive)):
                for priority in (f"{name}-first", f"{name}-only"):
                    verb("topics", "--set-tiered-read-priority", "acme/orders/placed", priority)
                    write()  # the broker works on
                    view.refresh()
                    agent.caught_up({(TOPIC, 0): len(written)})
                    for broken in breakages:
                        with broken():
                            falls_back = priority.endswith("first")
                            assert is_read(expected=falls_back) is falls_back, (priority, breakages.index(broken))
                    assert is_read(), f"{priority}: mended"
            agent.stop()
