"""Whether the triggers that are set come before the broker's own retention: for who sets them, so that a wrong one is refused at once.

What changes later, a topic's retention or a new topic under a pattern, is met by the agent at its work: see archival.plan.offload_trigger.
"""

from collections.abc import Callable
from typing import NamedTuple

from archival.plan.offload_trigger import LocalRetention, misfit, unknown_limit
from archival.plan.policy import Policy
from headwater.config import Config
from headwater_core.errors import HeadwaterError, UsageError
from headwater_core.segments.log_dirs import LogDirs

NAMED_MAX = 5  # of topics in one error

Named = list[tuple[str, str]]


class TriggerCheck(NamedTuple):
    """Topics by name, each with a reason: whose trigger is too late, and whose retention nothing says."""

    refused: Named
    unknown: Named

    def raise_refused(self) -> None:
        """Raises UsageError, which names the first of them, where there are any."""
        if self.refused:
            words = "; ".join(f"topic {topic}: {reason}" for topic, reason in self.refused[:NAMED_MAX])
            raise UsageError(words + (f"; and {len(self.refused) - NAMED_MAX} topics more" if len(self.refused) > NAMED_MAX else ""))

    @property
    def warning(self) -> str:
        """ "" where every retention is known."""
        if not self.unknown:
            return ""
        topic, reason = self.unknown[0]
        more = f" (and for {len(self.unknown) - 1} topics more)" if len(self.unknown) > 1 else ""
        return f"topic {topic}: {reason}, and nothing says what that is{more}: name the broker's file in log.server_properties"


def check_triggers(config: Config, dirs: LogDirs, wanted: Callable[[str], bool] = lambda _: True) -> TriggerCheck:
    """Those of the topics that the broker's metadata log has. Raises nothing: what cannot be read is unknown."""
    refused, unknown = Named(), Named()
    if config.log.owned:
        return TriggerCheck(refused, unknown)
    try:
        cluster, node = dirs.metadata(), dirs.node_id
        names = sorted(cluster.topics) if cluster is not None else sorted({each.topic for each in dirs.listing().partitions})
    except HeadwaterError:
        return TriggerCheck(refused, unknown)  # who needs the directories says so
    for topic in filter(wanted, names):
        triggers = Policy.of(config.archival_for(topic)).triggers
        if triggers is None:
            continue
        kept = LocalRetention(None)
        if cluster is not None:
            compacted = "compact" in cluster.policy_of(topic)
            tombstones_ms = cluster.delete_retention_ms_of(topic, node) if compacted else None
            kept = LocalRetention(cluster.retention_of(topic, node, dirs.static), tombstones_ms)
        if reason := misfit(triggers, kept):
            refused.append((topic, reason))
        elif reason := unknown_limit(triggers, kept):
            unknown.append((topic, reason))
    return TriggerCheck(refused, unknown)


def differ(before: Config, after: Config) -> Callable[[str], bool]:
    """Has a topic other triggers in `after`? What was applied before, and is not any more, must not stand in the way of other settings."""
    return lambda topic: Policy.of(before.archival_for(topic)).triggers != Policy.of(after.archival_for(topic)).triggers
