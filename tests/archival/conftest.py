from pathlib import Path

import pytest

from tests.archival.builders import Agent, Directory


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path / "logs")


@pytest.fixture
def agent(directory: Directory) -> Agent:
    return Agent(directory.root)
