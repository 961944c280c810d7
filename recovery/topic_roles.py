"""Whose state a topic holds, beside records of its users: by its name, so that it is a guess for all but Kafka's own."""

import re
from collections.abc import Iterable

_COORDINATORS = {
    "__consumer_offsets": "consumer groups",
    "__transaction_state": "transactions",
    "__share_group_state": "share groups",
    "__remote_log_metadata": "tiered storage",
}
_CONNECT = re.compile(r"(.*[-._])?connect[-._](configs?|offsets?|status(es)?|storage)", re.IGNORECASE)


def is_brokers_own(topic: str) -> bool:
    """Whether brokers make this topic for themselves, and keep in it what is about their own cluster."""
    return topic in _COORDINATORS


def role_of(topic: str) -> str | None:
    """Whose state a topic probably is, by its name; None for what is nobody's."""
    if topic in _COORDINATORS:
        return _COORDINATORS[topic]
    if topic.endswith(("-changelog", "-repartition")):
        return "Kafka Streams"
    return "Kafka Connect" if _CONNECT.fullmatch(topic) else None


def topics_by_role(topics: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Those that are somebody's state."""
    found: dict[str, list[str]] = {}
    for topic in sorted(topics):
        if role := role_of(topic):
            found.setdefault(role, []).append(topic)
    return {role: tuple(found[role]) for role in sorted(found)}
