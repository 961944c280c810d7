from pathlib import Path

import pytest

from tests.headwater_core.segments.log_dirs.broker import Broker


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path / "broker")
