"""OffsetFetch (key 9), versions 1 to 10: assign() with a group id requests the group's offsets.

v2  all topics; an error of the group
v6  flexible
v7  stable offsets alone (KIP-447)
v8  several groups (KIP-709)
v9  member id and epoch (KIP-848)
v10 topics by id (KIP-848)

Not here: offsets. No group has committed any, so that a reader falls to its own auto.offset.reset at once.
"""

from typing import Any

from headwater.gateway.messages import Fields
from headwater.gateway.protocol import Code

VERSIONS = range(1, 11)


def respond(body: Fields) -> Fields:
    """No group has committed anything here: offset -1 for all that is requested, without an error."""
    return {
        "error_code": Code.NONE,
        "topics": _nothing_committed(body.get("topics")),
        "groups": [
            {"group_id": group["group_id"], "error_code": Code.NONE, "topics": _nothing_committed(group["topics"])}
            for group in body.get("groups") or ()
        ],
    }


def _nothing_committed(topics: list[dict[str, Any]] | None) -> list[Fields]:
    return [
        {
            "name": topic.get("name"),
            "topic_id": topic.get("topic_id"),
            "partitions": [
                {"partition_index": at, "committed_offset": -1, "committed_leader_epoch": -1, "metadata": "", "error_code": Code.NONE}
                for at in topic["partition_indexes"]
            ],
        }
        for topic in topics or ()
    ]
