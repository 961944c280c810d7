"""Three nodes on loopback agree, survive the loss of one, and do not listen to strangers."""

import io
import logging
import os
import pickle
import shutil
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from headwater_core.control.config import ControlConfig
from headwater_core.control.control_records import Advanced
from headwater_core.control.journal import Entry, Journal
from headwater_core.control.node import ControlNode
from headwater_core.control.state import apply
from headwater_core.errors import TransientError
from tests.headwater_core.control.builders import PARTITION, advanced
from tests.s3server import free_ports


def until(condition: Callable[[], bool], what: str, timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, what
        pause.wait(0.02)


class Trio:
    """Three nodes, each with its own directory."""

    def __init__(self, root: Path) -> None:
        addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
        self.root = root
        self.configs = [ControlConfig(listen=own, peers=tuple(other for other in addresses if other != own)) for own in addresses]
        self.nodes: list[ControlNode | None] = [None, None, None]
        for number in range(3):
            self.start(number)

    def start(self, number: int) -> None:
        self.nodes[number] = ControlNode(self.root / str(number), self.configs[number])

    def stop(self, number: int) -> None:
        node = self.nodes[number]
        assert node is not None
        node.close()
        self.nodes[number] = None

    @property
    def running(self) -> list[ControlNode]:
        return [node for node in self.nodes if node]

    def publish(self, *records: Advanced) -> None:
        """As an agent does: repeat what got no answer."""
        for _ in range(20):
            try:
                self.running[0].publish(*records, timeout_s=5)
                return
            except TransientError:
                continue
        raise AssertionError("never accepted")

    def agree(self) -> bool:
        return len({node.state().digest() for node in self.running}) == 1


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    trio = Trio(tmp_path)
    yield trio
    for node in trio.running:
        node.close()


def knows(node: ControlNode, last_offset: int) -> bool:
    state = node.state().partition(PARTITION)
    return state is not None and state.last_offset == last_offset


@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <_io:pytest.PytestUnraisableExceptionWarning"
)  # pysyncobj leaves a sent snapshot open
def test_three_nodes_agree_and_one_that_was_away_catches_up(trio: Trio) -> None:
    for version in range(1, 21):
        trio.publish(advanced(version))
    until(lambda: all(knows(node, 199) for node in trio.running), "all three know")
    trio.stop(2)
    for version in range(21, 41):
        trio.publish(advanced(version))
    for node in trio.running:
        node.compact()  # so that the one that was away needs a snapshot
    trio.publish(advanced(41))
    trio.start(2)
    until(lambda: all(knows(node, 409) for node in trio.running), "the third has caught up")
    until(trio.agree, "equal states")


def newest(journal: Journal) -> Entry:
    entry = journal[-1]
    assert isinstance(entry, tuple)
    return entry


def test_without_a_majority_nothing_is_accepted(trio: Trio) -> None:
    trio.publish(advanced(1))
    trio.stop(1)
    trio.stop(2)
    with pytest.raises(TransientError):
        trio.running[0].publish(advanced(2), timeout_s=0.5)
    assert knows(trio.running[0], 9)


def test_a_node_that_applied_what_the_others_lost_begins_again(trio: Trio, caplog: pytest.LogCaptureFixture) -> None:
    """Two disks come back from an old copy: the majority has forgotten what one node knows."""
    trio.publish(advanced(1))
    until(lambda: all(knows(node, 9) for node in trio.running), "all three know")
    for number in range(3):
        trio.stop(number)
    for number in (0, 1):
        shutil.copytree(trio.root / str(number), trio.root / f"old-{number}")
        trio.start(number)
    trio.start(2)
    trio.publish(advanced(5))
    until(lambda: all(knows(node, 49) for node in trio.running), "all three know the next")
    for number in range(3):
        trio.stop(number)
    for number in (0, 1):
        shutil.rmtree(trio.root / str(number))
        (trio.root / f"old-{number}").rename(trio.root / str(number))
        trio.start(number)
    for version in range(2, 5):
        trio.publish(advanced(version))
    with capture_logs() as events:
        trio.start(2)
        diverged = trio.nodes[2]
        assert diverged
        until(lambda: diverged.failure is not None, "it has noticed")
    assert [event["event"] for event in events] == ["control_state_discarded"]
    trio.stop(2)
    trio.start(2)
    until(lambda: all(knows(node, 39) for node in trio.running), "it has caught up")
    assert trio.agree()
    assert trio.running[2].needs_rebuild
    trio.publish(advanced(5))
    until(lambda: all(knows(node, 49) for node in trio.running), "the bucket has said the rest")
    assert not [record for record in caplog.records if record.levelno > logging.WARNING]


def test_a_node_with_entries_that_nobody_agreed_on_catches_up_whatever_follows_them(trio: Trio) -> None:
    """What follows does not fit into one message of the leader: it sends several before it reads the first answer."""
    trio.publish(*(advanced(1, partition=number, writer="x" * 900) for number in range(40)))
    until(lambda: all(knows(node, 9) for node in trio.running), "all three know")
    for number in range(3):
        trio.stop(number)
    journals = [Journal(trio.root / str(number) / "control" / "journal") for number in range(3)]
    term = max(journal.getCurrentTerm() for journal in journals)
    command, last, _ = max((newest(journal) for journal in journals), key=lambda entry: entry[1])
    for number, journal in enumerate(journals):
        own = term + 1 + (number < 2)  # the first two had a later leader, and the third one had one that nobody followed
        for index in range(last + 1, last + (21 if number < 2 else 4)):
            journal.add(command, index, own)
        journal.setCurrentTerm(own, None)
        journal._destroy()
    for number in range(3):
        trio.start(number)
    until(lambda: len({node.applied for node in trio.running}) == 1 and trio.running[2].applied > last + 20, "the third has caught up")
    assert trio.agree()


def test_a_node_whose_state_is_another_one_begins_again(trio: Trio) -> None:
    """Bits have flipped in its memory: the leader's digest says so."""
    trio.publish(advanced(1))
    until(lambda: all(knows(node, 9) for node in trio.running), "all three know")
    until(lambda: any(node.role == "leader" for node in trio.running), "there is a leader")
    leader = next(node for node in trio.running if node.role == "leader")
    number, follower = next((number, node) for number, node in enumerate(trio.nodes) if node and node is not leader)
    leader.send_digest()
    trio.publish(advanced(2))
    until(lambda: all(knows(node, 19) for node in trio.running), "an equal state changes nothing")
    follower._replica.load(apply(follower.state(), advanced(3, last_offset=7)))
    trio.publish(advanced(1, partition=1))  # after which both have a sum to compare
    until(lambda: all(node.state().partition(replace(PARTITION, partition=1)) for node in trio.running), "all have applied it")
    with capture_logs() as events:
        leader.send_digest()
        until(lambda: follower.failure is not None, "it has noticed")
    assert [event["event"] for event in events] == ["control_state_discarded"]
    trio.stop(number)
    trio.start(number)
    until(lambda: all(knows(node, 19) for node in trio.running), "it has caught up")
    until(trio.agree, "equal states")


class _Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_strangers_run_no_code_and_stop_nothing(trio: Trio, tmp_path: Path) -> None:
    trio.publish(advanced(1))
    marker = tmp_path / "executed"
    evil = zlib.compress(pickle.dumps(_Evil(marker)))
    for payload in (
        struct.pack("i", len(evil)) + evil,
        struct.pack("i", 2**31 - 1) + bytes(1000),
        struct.pack("i", -5) + bytes(1000),
        framed(zlib.compress(bytes(200 << 20), 9)),
        framed(b"not zlib"),
        message("readonly"),
        message(["set_version", 5]),
        message({"unhashable": 1}),
        *(message(peer.listen) + message(said) for peer in trio.configs for said in ({"type": "nonsense"}, 7, {"type": "append_entries"})),
    ):
        for config in trio.configs:
            host, port = config.listen.split(":")
            with socket.create_connection((host, int(port)), timeout=10) as stranger:
                stranger.sendall(payload)
                stranger.shutdown(socket.SHUT_WR)
    trio.publish(advanced(2))
    until(lambda: all(knows(node, 19) for node in trio.running), "still at work")
    assert not marker.exists()


def framed(data: bytes) -> bytes:
    return struct.pack("i", len(data)) + data


def message(value: object) -> bytes:
    return framed(zlib.compress(pickle.dumps(value)))


def test_a_port_in_use_is_a_clear_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(TransientError, match=address):
            ControlNode(tmp_path, ControlConfig(listen=address, peers=("127.0.0.1:1",)))
    files = tmp_path / "control"
    assert (files / "journal").exists()


def test_the_library_unpickles_nothing_but_plain_values(tmp_path: Path) -> None:
    import pysyncobj.pickle  # the place that is guarded

    marker = tmp_path / "executed"
    for dangerous in (pickle.dumps(_Evil(marker)), b"cos\nsystem\n(S'true'\ntR."):
        with pytest.raises(pickle.UnpicklingError):
            pysyncobj.pickle.loads(dangerous)
        with pytest.raises(pickle.UnpicklingError):
            pysyncobj.pickle.load(io.BytesIO(dangerous))
    assert not marker.exists()
    plain = {"a": [1, (b"bytes", "text", None)], "b": True}
    assert pysyncobj.pickle.loads(pysyncobj.pickle.dumps(plain)) == plain
