from pathlib import Path

import pytest

from tests.headwater_core.segments.metadata.written_log import Log


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)
