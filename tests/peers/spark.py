"""A Spark standalone cluster on this machine: a master and workers of one core each, from the installed pyspark."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import pyspark

from tests.headwater.pipeline.spark_fixtures import SETTINGS
from tests.peers.kafka import free_port

_ROOT = Path(__file__).parents[2]
_HOME = Path(pyspark.__file__).parent
_READY_S = 90


class _Service:
    """A master or a worker, and the lines that it has written."""

    def __init__(self, name: str, *arguments: str) -> None:
        command = [str(_HOME / "bin/spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=_environment())
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            with self._news:
                self._lines.append(line)
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def wait_for_line(self, pattern: str, times: int = 1) -> None:
        def is_there() -> bool:
            return sum(bool(re.search(pattern, line)) for line in self._lines) >= times

        with self._news:
            self._news.wait_for(lambda: is_there() or self._ended, _READY_S)
            assert is_there(), f"not ready after {_READY_S} s:\n{''.join(self._lines)[-4000:]}"

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join()
        assert self._process.stdout
        self._process.stdout.close()


class SparkCluster:
    """with SparkCluster(work, workers=2) as cluster: starts it and waits until the workers have registered; stops it at the end."""

    def __init__(self, work: Path, *, workers: int) -> None:
        self.work, self._workers = work, workers
        self._port = free_port()
        self.master = f"spark://127.0.0.1:{self._port}"
        self._services: list[_Service] = []

    def __enter__(self) -> Self:
        try:
            master = self._start("master.Master", "--port", str(self._port))
            master.wait_for_line("elected leader")
            for _ in range(self._workers):
                self._start("worker.Worker", "--cores", "1", "--memory", "1g", "--work-dir", str(self.work), self.master)
            master.wait_for_line("Registering worker ", self._workers)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """In order: workers end their executors."""
        while self._services:
            self._services.pop().stop()

    def _start(self, name: str, *arguments: str) -> _Service:
        self._services.append(_Service(name, "--host", "127.0.0.1", "--webui-port", str(free_port()), *arguments))
        return self._services[-1]

    def submit(self, program: Path, *arguments: object) -> "Driver":
        """Start `program` with spark-submit, its executors on this cluster."""
        command: list[str] = [str(_HOME / "bin/spark-submit"), "--master", self.master]
        for name, value in {
            **SETTINGS,
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.cores.max": str(self._workers),
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # else one may have done all before another is there
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
            "spark.sql.warehouse.dir": self.work,
        }.items():
            command += ["--conf", f"{name}={value}"]
        return Driver([*command, str(program), *map(str, arguments)])


class Driver:
    """A program that spark-submit runs, in a process group of its own: the driver's JVM and its Python."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_environment(), start_new_session=True
        )
        self._errors: list[str] = []
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stderr
        self._errors.extend(self._process.stderr)

    def line(self) -> str:
        """The next line that it prints; "" when it has ended."""
        assert self._process.stdout
        return self._process.stdout.readline().strip()

    def result(self, timeout_s: int = 300) -> str:
        """All that it still prints; it has to end with 0."""
        ends = threading.Timer(timeout_s, self.kill)
        ends.start()
        try:
            assert self._process.stdout
            text = self._process.stdout.read()
            code = self._process.wait()
        finally:
            ends.cancel()
            self._close()
        assert code == 0, f"ended with {code}:\n{''.join(self._errors)[-6000:]}"
        return text

    def kill(self) -> None:
        """kill -9 of the driver: its JVM, its Python and the workers of that."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def killed(self) -> None:
        self.kill()
        self._close()

    def _close(self) -> None:
        self._listener.join()
        assert self._process.stdout
        assert self._process.stderr
        self._process.stdout.close()
        self._process.stderr.close()


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "SPARK_HOME": str(_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": f"{_ROOT}:{os.environ.get('PYTHONPATH', '')}",
    }
