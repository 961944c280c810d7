"""Control nodes that tests start, here or in another process."""

import subprocess
import sys
from pathlib import Path

from headwater_core.control.config import ControlConfig
from headwater_core.control.node import ControlNode
from tests.headwater_core.control.builders import PARTITION


def a_node(data_dir: Path, config: ControlConfig | None = None) -> ControlNode:
    node = ControlNode(data_dir, config)
    assert node.ready(20)
    return node


def last_offset(node: ControlNode) -> int | None:
    state = node.state().partition(PARTITION)
    return state.last_offset if state else None


def run(script: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True, timeout=120)
