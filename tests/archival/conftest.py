from dataclasses import replace
from pathlib import Path

import pytest

from headwater_core.partition import TopicPartition
from headwater_core.segments.local_log import LocalLog
from headwater_core.segments.log_dirs import LogDirs
from tests.archival.builders import Agent, Directory, SendingStore, led_by
from tests.headwater.broker import Bench


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path / "logs")


@pytest.fixture
def agent(directory: Directory) -> Agent:
    return Agent(directory.root)


@pytest.fixture
def store() -> SendingStore:
    return SendingStore()


@pytest.fixture
def bench(tmp_path: Path, store: SendingStore) -> Bench:
    return Bench(tmp_path, store)


@pytest.fixture
def led(monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata log says that the broker leads everything."""
    look = LogDirs.look

    def led_look(self: LogDirs, place: TopicPartition) -> LocalLog:
        return replace(look(self, place), leadership=led_by(1, 0, replicas=(1,), in_sync=(1,)), metadata_end=7)

    monkeypatch.setattr(LogDirs, "look", led_look)
