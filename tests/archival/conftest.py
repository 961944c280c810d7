from pathlib import Path

import pytest

from tests.archival.builders import Agent, Directory, SendingStore
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
