"""Headwater beside a real broker: its configuration, its verbs, and the agent as a process of its own."""

import contextlib
import json
import os
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
from headwater_core.errors import StoreGone
from manifests.head import Head
from manifests.topic_survey import survey_topics
from tests.peers.kafka import free_port

ROOT = Path(__file__).parents[2]
OWN_DISK = 'mount -t tmpfs -o size="$1",mode=0700 none "$0" && shift && exec "$@"'
OFTEN = 'seal_timeout = "1s"\nrescan = "1s"'


class Headwater:
    """One agent's set-up below `work`: a bucket, a data directory, a configuration file.

    log_dir  None: it only reads
    store  the section of that name, instead of a directory below `work`
    log, archival, hydration, control, gateway  more settings of these sections
    listen  where its control log listens for its peers
    admin  where its admin port listens; it has none without
    """

    def __init__(
        self,
        work: Path,
        log_dir: Path | None,
        *,
        owned: bool = False,
        store: str = "",
        log: str = "",
        archival: str = "",
        hydration: str = "",
        control: str = "",
        gateway: str = "",
        listen: str = "",
        admin: str = "",
    ) -> None:
        self.file = work / "headwater.toml"
        self.bucket = work / "bucket"
        work.mkdir(parents=True, exist_ok=True)
        self.file.write_text(
            f"""
[node]
id = "peer"
data_dir = "{work / "state"}"
[log]
dirs = {json.dumps([str(log_dir)] if log_dir else [])}
owned = {str(owned).lower()}
{log}
[store]
{store or f'url = "file://{self.bucket}"'}
[archival]
{archival or OFTEN}
[hydration]
cache_bytes = "64MiB"
{hydration}
[control]
listen = "{listen or f"127.0.0.1:{free_port()}"}"
{control}
[gateway]
listen = "127.0.0.1:0"
{gateway}
[admin]
listen = "{admin}"
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
        """Of what is archived: nothing until an agent has made the bucket."""
        manifests = open_bucket(self.config).manifests
        try:
            topics = survey_topics(manifests.store).manifests
        except StoreGone:
            return {}
        found = {}
        for topic in topics:
            for partition in manifests.partitions(topic.topic, topic.topic_id):
                held = manifests.load(partition)
                if held is not None:
                    found[topic.topic, partition.partition] = held.head
        return found


class Agent:
    """`headwater agent` in a process of its own.

    disk_mib  its data directory lies on a disk of its own that is so large: see OWN_DISK
    defect    a file: see tests.peers.defective
    is_plain  file modes hold for it, as for a service's user, though root starts it
    """

    def __init__(self, headwater: Headwater, disk_mib: int = 0, *, defect: Path | None = None, is_plain: bool = False) -> None:
        self.headwater, self.output, self._has_own_disk = headwater, headwater.file.with_name("agent.out"), disk_mib > 0
        own_disk: list[str] = []
        if disk_mib:
            data_dir = headwater.config.node.data_dir
            data_dir.mkdir(exist_ok=True)
            own_disk = ["unshare", "-rm", "sh", "-c", OWN_DISK, str(data_dir), f"{disk_mib}m"]
        program = ["-m", "tests.peers.defective", str(defect)] if defect else ["-c", "from headwater.cli import main; main()"]
        plain = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if is_plain and os.geteuid() == 0 else []
        command = [*plain, *own_disk, sys.executable, *program, "--config", str(headwater.file), "agent"]
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(120)
        assert code == 0, f"exit code {code}:\n{self.log_text()[-4000:]}"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def verb(self, *arguments: str, code: int = 0) -> None:
        """`headwater ARGUMENTS`, where the agent sees its disks."""
        command = [sys.executable, "-c", "from headwater.cli import main; main()", "--config", str(self.headwater.file), *arguments]
        within = ["nsenter", f"--target={self._process.pid}", "--user", "--mount", "--preserve-credentials", f"--wd={ROOT}", "--"]
        command = [*within, *command] if self._has_own_disk else command
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=ROOT)
        assert done.returncode == code, done.stderr

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """For the time of a block there is no room on its own disk."""
        filler = Path(f"/proc/{self._process.pid}/root{self.headwater.config.node.data_dir}/filler")
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 20))
        try:
            yield
        finally:
            filler.unlink()

    def log_text(self) -> str:
        return self.output.read_text(errors="replace")

    def address(self, *, patience_s: float = 180) -> str:
        """Where its gateway listens, once it does."""
        deadline = time.monotonic() + patience_s
        while not (found := re.search(r"^serving on (\S+)$", self.log_text(), re.MULTILINE)):
            assert self._process.poll() is None, f"the agent ended:\n{self.log_text()[-4000:]}"
            assert time.monotonic() < deadline, f"no gateway after {patience_s} s:\n{self.log_text()[-4000:]}"
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.1)
        return found[1]

    def caught_up(self, ends: dict[tuple[str, int], int], *, patience_s: float = 180) -> None:
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
