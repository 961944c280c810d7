"""A change of what is paused, as `headwater pause` and `headwater resume` request it, in the agent or without it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headwater.options import parse_selection
from headwater_core.clock import SystemClock
from headwater_core.errors import UsageError
from manifests.pause_list import PauseList, PauseScope


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseChange:
    """resume: end the pauses of what is selected; else begin one. by: who wants it."""

    resume: bool
    selection: str | None
    everything: bool
    by: str

    def decide(self, before: PauseList) -> PauseList:
        """Raises UsageError for a selection that cannot be resumed by itself, or is none."""
        if (self.selection is None) != self.everything:
            raise UsageError("either TOPIC or TOPIC:P, or --all")
        selection = PauseScope(*parse_selection(self.selection)) if self.selection else PauseScope()
        now_ms = SystemClock().now_ms()
        return before.resumed(selection, now_ms=now_ms) if self.resume else before.paused(selection, now_ms=now_ms, by=self.by[:100])


def pause_rows(pauses: PauseList) -> Iterator[dict[str, Any]]:
    """What is paused."""
    for each in pauses.pauses:
        if each.in_force:
            selection = str(each.selection)
            yield {"selection": selection, "topic": each.topic, "partition": each.partition, "since_ms": each.since_ms, "by": each.by}
