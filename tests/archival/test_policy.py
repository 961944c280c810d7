"""What the settings of a topic allow an agent, and a command."""

from dataclasses import replace

import pytest

from archival.config import ArchivalConfig, ArchiveMode, OffloadMode
from archival.plan.policy import Policy, TriggerBound


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


@pytest.mark.parametrize(
    ("mode", "after_s", "requested", "off", "waits", "completes"),
    [
        (ArchiveMode.AUTO, 60, False, "", False, False),
        (ArchiveMode.MANUAL, None, False, "archive = manual", False, False),
        (ArchiveMode.MANUAL, 60, False, "", True, False),
        (ArchiveMode.MANUAL, 60, True, "", False, True),
        (ArchiveMode.OFF, 60, False, "archive = off", False, False),
    ],
)
def test_what_is_streamed_waits_for_triggers_under_manual_alone(
    mode: ArchiveMode, after_s: int | None, requested: bool, off: str, waits: bool, completes: bool
) -> None:
    settings = ArchivalConfig(archive=mode, offload_after_s=after_s, offload=OffloadMode.STREAMING)
    policy = Policy.of(settings, requested=requested)
    assert policy.stream is not None
    assert (policy.off, policy.triggers is not None, policy.stream.completes) == (off, waits, completes)


def test_what_a_trigger_lets_go_is_closed_at_once() -> None:
    policy = Policy.of(ArchivalConfig(archive=ArchiveMode.MANUAL, offload_after_s=60, offload=OffloadMode.STREAMING))
    assert policy.stream_limits == policy.stream, "where it is not heeded"
    assert policy.follows
    bound = replace(policy, bound=TriggerBound(10, None, None, "later"))
    assert bound.stream_limits is not None
    assert (bound.stream_limits.completes, bound.follows, bound.unbound) == (True, False, policy)
