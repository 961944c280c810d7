"""Headwater beside a real broker: its configuration, its verbs, and the agent as a process of its own."""

import contextlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from headwater.config import Config, load
from headwater.gateway_thread import running_gateway
from headwater.session import PassRequest, open_session, pass_rows
from headwater.wiring import open_bucket, open_logs
from manifests.head import Head
from manifests.topic_survey import survey_topics
from tests.peers.kafka import free_port

ROOT = Path(__file__).parents[2]
OFTEN = 'seal_timeout = "1s"\nrescan = "1s"'


class Headwater:
    """One agent's set-up below `work`: a bucket, a data directory, a configuration file.

    store  the section of that name, instead of a directory below `work`
    log, archival  more settings of these sections
    """

    def __init__(self, work: Path, log_dir: Path, *, owned: bool = False, store: str = "", log: str = "", archival: str = "") -> None:
        self.file = work / "headwater.toml"
        self.bucket = work / "bucket"
        work.mkdir(parents=True, exist_ok=True)
        self.file.write_text(
            f"""
[node]
id = "peer"
data_dir = "{work / "state"}"
[log]
dirs = ["{log_dir}"]
owned = {str(owned).lower()}
{log}
[store]
{store or f'url = "file://{self.bucket}"'}
[archival]
{archival or OFTEN}
[hydration]
cache_bytes = "64MiB"
[control]
listen = "127.0.0.1:{free_port()}"
[gateway]
listen = "127.0.0.1:0"
[admin]
listen = ""
"""
        )

    @property
    def config(self) -> Config:
        return load(self.file, {}, {})

    def archive(self, *, before: int | None = None, tails: bool = False) -> None:
        """One pass. In an owned directory, what it has archived is gone from there afterwards."""
        with open_session(self.config) as held:
            assert held.fleet is not None
            for row in pass_rows(held.fleet, PassRequest(before=before, tail_older_than_s=0 if tails else None)):
                assert row["error"] is None, row

    @contextmanager
    def gateway(self) -> Iterator[str]:
        """The address of the standalone gateway over what there is."""
        config = self.config
        with open_logs(config, open_bucket(config)) as logs, running_gateway(logs, config.gateway) as address:
            yield address

    def heads(self) -> dict[tuple[str, int], Head]:
        manifests = open_bucket(self.config).manifests
        found = {}
        for topic in survey_topics(manifests.store).manifests:
            for partition in manifests.partitions(topic.topic, topic.topic_id):
                held = manifests.load(partition)
                if held is not None:
                    found[topic.topic, partition.partition] = held.head
        return found


class Agent:
    """`headwater agent` in a process of its own."""

    def __init__(self, headwater: Headwater) -> None:
        self.headwater, self.output = headwater, headwater.file.with_name("agent.out")
        command = [sys.executable, "-c", "from headwater.cli import main; main()", "--config", str(headwater.file), "agent"]
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(30)
        assert code == 0, f"exit code {code}:\n{self.log_text()[-4000:]}"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def log_text(self) -> str:
        return self.output.read_text(errors="replace")

    def address(self, *, patience_s: float = 60) -> str:
        """Where its gateway listens, once it does."""
        deadline = time.monotonic() + patience_s
        while not (found := re.search(r"^serving on (\S+)$", self.log_text(), re.MULTILINE)):
            assert self._process.poll() is None, f"the agent ended:\n{self.log_text()[-4000:]}"
            assert time.monotonic() < deadline, f"no gateway after {patience_s} s:\n{self.log_text()[-4000:]}"
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.1)
        return found[1]

    def caught_up(self, ends: dict[tuple[str, int], int], *, patience_s: float = 60) -> None:
        """Return when the archive covers every partition up to `ends`, its next offset."""
        deadline = time.monotonic() + patience_s
        while True:
            heads = self.headwater.heads()
            lacking = {place: end for place, end in ends.items() if place not in heads or heads[place].next_offset < end}
            if not lacking:
                return
            assert self._process.poll() is None, f"the agent ended:\n{self.log_text()[-4000:]}"
            assert time.monotonic() < deadline, f"not archived after {patience_s} s: {lacking}\n{self.log_text()[-6000:]}"
            try:
                self._process.wait(0.3)
            except subprocess.TimeoutExpired:
                continue
