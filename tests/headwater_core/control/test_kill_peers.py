"""Three control nodes as processes of their own, killed in the middle of their work and started again: their states agree in the end.

CONTROL_KILLS sets how often.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import IO

import pytest

from headwater_core.control.config import ControlConfig
from headwater_core.control.node import ControlNode
from tests.headwater_core.control.test_peers import until
from tests.s3server import free_ports

KILLS = int(os.environ.get("CONTROL_KILLS", "6"))
PARTITIONS = 40
PROGRAM = """
import sys, time
from pathlib import Path
from headwater_core.control.config import ControlConfig
from headwater_core.control.node import ControlNode
from headwater_core.errors import HeadwaterError
from tests.headwater_core.control.builders import advanced

data_dir, number, partitions, own, *others = sys.argv[1:]
versions = dict.fromkeys(range(int(partitions)), 0)
with ControlNode(Path(data_dir), ControlConfig(listen=own, peers=tuple(others))) as node:
    print("started", flush=True)
    while True:
        for partition, state in node.state().partitions():
            versions[partition.partition] = max(versions[partition.partition], state.manifest_version)
        batch = [advanced(version + 1, partition=p, writer=f"agent-{number}-" + "x" * 900) for p, version in versions.items()]
        try:
            node.publish(*batch, timeout_s=2)
            print("published", flush=True)
        except HeadwaterError:
            time.sleep(0.05)
        if node.failure:
            raise SystemExit(str(node.failure))
"""


class Processes:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
        self._running: list[subprocess.Popen[bytes] | None] = [None] * 3
        self._outputs: list[IO[bytes]] = [(root / f"{number}.out").open("ab") for number in range(3)]

    def config(self, number: int) -> ControlConfig:
        own = self.addresses[number]
        return ControlConfig(listen=own, peers=tuple(other for other in self.addresses if other != own))

    def start(self, number: int) -> None:
        config = self.config(number)
        data_dir = self.root / str(number)
        data_dir.mkdir(exist_ok=True)
        command = [sys.executable, "-c", PROGRAM, str(data_dir), str(number), str(PARTITIONS), config.listen, *config.peers]
        self._running[number] = subprocess.Popen(command, stdout=self._outputs[number], stderr=subprocess.STDOUT)

    def kill(self, number: int) -> None:
        process = self._running[number]
        if process:
            assert process.poll() is None, self.said(number)
            process.send_signal(signal.SIGKILL)
            process.wait()
        self._running[number] = None

    def end(self) -> None:
        for number, process in enumerate(self._running):
            if process and process.poll() is None:
                self.kill(number)
        for output in self._outputs:
            output.close()

    def said(self, number: int) -> str:
        return (self.root / f"{number}.out").read_text()

    def wait_for_progress(self) -> None:
        """Wait until one of the three has published twice, so that every version has grown."""
        before = self._published()
        until(lambda: self._published() >= before + 4, "they publish", 60)

    def _published(self) -> int:
        return sum(self.said(number).count("published") for number in range(3))


@pytest.mark.slow
def test_nodes_that_are_killed_and_started_agree_and_raise_no_alarm(tmp_path: Path) -> None:
    random, processes = Random(1), Processes(tmp_path)
    try:
        for number in range(3):
            processes.start(number)
        until(lambda: all("started" in processes.said(number) for number in range(3)), "all three run", 60)
        for _ in range(KILLS):
            processes.wait_for_progress()
            time.sleep(random.uniform(0.2, 1.5))
            number = random.randrange(3)
            processes.kill(number)
            if random.random() < 0.5:
                time.sleep(random.uniform(0, 1.5))
            processes.start(number)
        processes.wait_for_progress()
        for number in range(3):
            processes.kill(number)
    finally:
        processes.end()
    nodes = [ControlNode(tmp_path / str(number), processes.config(number)) for number in range(3)]
    try:
        ready = [node.ready(60) for node in nodes]
        assert all(ready), [(node.failure, node.role, node.applied) for node in nodes]
        until(lambda: len({node.state().digest() for node in nodes}) == 1, "equal states", 60)
        assert [node.failure for node in nodes if node.failure] == []
        versions = [state.manifest_version for _, state in nodes[0].state().partitions()]
        assert len(versions) == PARTITIONS
        assert min(versions) > KILLS
    finally:
        for node in nodes:
            node.close()
    for number in range(3):
        lines = [line for line in processes.said(number).splitlines() if "control_message_dropped" not in line]
        assert set(lines) <= {"started", "published"}, lines
