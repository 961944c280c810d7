"""What the settings of a topic allow an agent, and a command."""

import pytest

from archival.config import ArchivalConfig, ArchiveMode
from archival.plan.policy import Policy


@pytest.mark.parametrize(
    ("mode", "after_s", "requested", "off", "waits"),
    [
        (ArchiveMode.AUTO, None, False, "", False),
        (ArchiveMode.AUTO, 60, False, "", True),
        (ArchiveMode.MANUAL, None, False, "archive = manual", False),
        (ArchiveMode.MANUAL, 60, False, "", True),
        (ArchiveMode.MANUAL, 60, True, "", False),
        (ArchiveMode.MANUAL, None, True, "", False),
        (ArchiveMode.OFF, 60, False, "archive = off", True),
        (ArchiveMode.OFF, 60, True, "archive = off", False),
    ],
)
def test_under_manual_only_triggers_and_commands_archive(
    mode: ArchiveMode, after_s: int | None, requested: bool, off: str, waits: bool
) -> None:
    policy = Policy.of(ArchivalConfig(archive=mode, offload_after_s=after_s), requested=requested)
    assert (policy.off, policy.triggers is not None) == (off, waits)
