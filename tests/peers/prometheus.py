"""A real Prometheus, and its promtool: Debian's package, unpacked into the cache of the peer tests without root."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from tests.peers.cache import fetched
from tests.peers.kafka import free_port

_READY_S = 30.0
_AS_WE_ARE = ("-o", "APT::Sandbox::User=")
_NONE = "these tests did not run: they need Prometheus and promtool (Debian: apt-get install prometheus)"


def promtool(*arguments: str | Path) -> str:
    """What it prints; its exit code is 0."""
    done = subprocess.run([_program("promtool"), *arguments], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Prometheus:
    """Over `work`. with Prometheus(...) as prometheus: starts it; ends it at the end.

    target   where a job named headwater scrapes
    rules    files
    every    between two scrapes, and two evaluations
    """

    def __init__(self, work: Path, target: str, rules: list[Path], every: str) -> None:
        work.mkdir()
        self.port, self.output = free_port(), work / "prometheus.out"
        config = {
            "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
            "rule_files": [str(each) for each in rules],
            "scrape_configs": [{"job_name": "headwater", "static_configs": [{"targets": [target]}]}],
        }
        (work / "prometheus.yml").write_text(json.dumps(config))  # which is YAML, too
        places = [f"--config.file={work / 'prometheus.yml'}", f"--storage.tsdb.path={work / 'data'}"]
        self._command = [str(_program("prometheus")), *places, f"--web.listen-address=127.0.0.1:{self.port}"]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self.output.open("wb") as output:
            self._process = subprocess.Popen(self._command, stdout=output, stderr=subprocess.STDOUT)
        until_s = time.monotonic() + _READY_S
        while True:
            try:
                self.query("vector(1)")
            except OSError:
                assert self._process.poll() is None, self.output.read_text()
                assert time.monotonic() < until_s, self.output.read_text()
                time.sleep(0.1)
            else:
                return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(30)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The result of an instant query: metric and value of each series."""
        found: list[dict[str, Any]] = self._get("query", query=expression)["result"]
        return found

    def firing(self) -> dict[str, list[dict[str, Any]]]:
        """Alerts that fire now, by name."""
        found: dict[str, list[dict[str, Any]]] = {}
        for each in self._get("alerts")["alerts"]:
            if each["state"] == "firing":
                found.setdefault(each["labels"]["alertname"], []).append(each)
        return found

    def _get(self, path: str, **arguments: str) -> Any:
        with urlopen(f"http://127.0.0.1:{self.port}/api/v1/{path}?{urlencode(arguments)}", timeout=10) as answer:
            document = json.load(answer)
        assert document["status"] == "success", document
        return document["data"]


def _program(name: str) -> Path:
    found = shutil.which(name)
    return Path(found) if found else fetched("prometheus", _unpack) / "usr" / "bin" / name


def _unpack(into: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        if os.environ.get("REQUIRE_PROMETHEUS"):
            pytest.fail(_NONE)
        pytest.skip(_NONE)
    work = into.with_suffix(".apt")
    try:
        (work / "lists" / "partial").mkdir(parents=True)
        download = ("download", "-qq", "prometheus")
        if not _run(work, "apt-get", *_AS_WE_ARE, *download):  # no lists of packages yet: by some of our own, which need no root
            own = (*_AS_WE_ARE, "-o", f"Dir::State::lists={work / 'lists'}", "-o", f"Dir::Cache={work}")
            _run(work, "apt-get", *own, "update", "-qq")
            assert _run(work, "apt-get", *own, *download), "the package prometheus could not be downloaded"
        [package] = work.glob("prometheus_*.deb")
        assert _run(work, "dpkg-deb", "-x", str(package), str(into))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run(work: Path, *command: str) -> bool:
    return subprocess.run(command, cwd=work, stdout=subprocess.DEVNULL, check=False, timeout=300).returncode == 0
