"""Consumer groups, as far as a reader without one needs them: assign() with a group id requests the group's offsets."""

from typing import Any

from headwater.gateway.apis import Code
from headwater.gateway.messages import Fields
from headwater.gateway.metadata import Address

REASON = (
    "this endpoint reads an archive and has no consumer groups: use assign() instead of subscribe(), commit to the broker or store "
    "offsets yourself (docs/questions.md), or point this group at the broker"
)


def find_coordinator(body: Fields, node_id: int, address: Address) -> Fields:
    """We coordinate every group and remember none, so that a reader falls to its own auto.offset.reset at once.

    The error "not available" would keep clients retrying forever. Joining and committing are refused.
    """
    here = {"error_code": Code.NONE, "error_message": None, "node_id": node_id, "host": address[0], "port": address[1]}
    return {**here, "coordinators": [{**here, "key": key} for key in dict.fromkeys(body.get("coordinator_keys") or ())]}


def offset_fetch(body: Fields) -> Fields:
    """No group has committed anything here: offset -1 for all that is requested, without an error."""
    return {
        "error_code": Code.NONE,
        "topics": _nothing_committed(body.get("topics")),
        "groups": [
            {"group_id": group["group_id"], "error_code": Code.NONE, "topics": _nothing_committed(group["topics"])}
            for group in body.get("groups") or ()
        ],
    }


def refuse_member() -> Fields:
    """For JoinGroup and ConsumerGroupHeartbeat: the error that every client takes for final and passes on."""
    return {
        "error_code": Code.GROUP_AUTHORIZATION_FAILED,
        "error_message": REASON,
        "generation_id": -1,
        "protocol_name": "",
        "leader": "",
        "member_id": "",
        "members": [],
        "member_epoch": -1,
        "heartbeat_interval": 5000,
    }


def refuse_commit(body: Fields) -> Fields:
    """The same for each partition of an OffsetCommit: nothing is stored, and no client shall believe it was."""
    return {
        "topics": [
            {
                "name": topic.get("name"),
                "topic_id": topic.get("topic_id"),
                "partitions": [
                    {"partition_index": each["partition_index"], "error_code": Code.GROUP_AUTHORIZATION_FAILED}
                    for each in topic["partitions"]
                ],
            }
            for topic in body["topics"]
        ]
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
