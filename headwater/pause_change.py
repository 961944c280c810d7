"""A change of what is paused, as `headwater pause` and `headwater resume` request it, in the agent or without it."""

from collections.abc import Iterator
from typing import Any

import msgspec

from headwater.options import parse_selection
from headwater_core.clock import SystemClock
from headwater_core.errors import UsageError
from manifests.pause_list import PauseList, PauseScope


class PauseChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """
    selection   a topic, or TOPIC:PARTITION
    everything  all topics, and no selection
    by          who wants it, as all agents show it
    """

    selection: str | None = None
    everything: bool = False
    by: str = ""

    def __post_init__(self) -> None:
        """Raises UsageError."""
        if (self.selection is None) != self.everything:
            raise UsageError("either TOPIC or TOPIC:P, or --all")
        self._scope()

    def pause(self, before: PauseList) -> PauseList:
        return before.paused(self._scope(), now_ms=SystemClock().now_ms(), by=self.by[:100])

    def resume(self, before: PauseList) -> PauseList:
        """Raises UsageError for a selection that cannot be resumed by itself."""
        return before.resumed(self._scope(), now_ms=SystemClock().now_ms())

    def _scope(self) -> PauseScope:
        return PauseScope(*parse_selection(self.selection)) if self.selection is not None else PauseScope()


def pause_rows(pauses: PauseList) -> Iterator[dict[str, Any]]:
    """What is paused."""
    for each in pauses.pauses:
        if each.in_force:
            selection = str(each.selection)
            yield {"selection": selection, "topic": each.topic, "partition": each.partition, "since_ms": each.since_ms, "by": each.by}
