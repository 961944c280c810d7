"""OffsetCommit (key 8), versions 2 to 10: refused, since nothing is stored.

v5  no retention time
v6  leader epoch (KIP-320)
v7  group instance id (KIP-345)
v8  flexible
v9  members of the protocol of KIP-848
v10 topics by id (KIP-848)
"""

from headwater.gateway.messages import Fields
from headwater.gateway.protocol import Code

VERSIONS = range(2, 11)


def respond(body: Fields) -> Fields:
    """For each partition the error that every client takes for final: none shall believe that it was stored."""
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
