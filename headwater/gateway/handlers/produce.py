"""Produce (key 0), versions 3 to 13: refused.

v3  transactional id (KIP-98)
v7  Zstandard (KIP-110)
v8  errors of records (KIP-467)
v9  flexible
v10 leaders' endpoints (KIP-951)
v11 TRANSACTION_ABORTABLE (KIP-890)
v12 transactions of version 2 (KIP-890)
v13 topics by id (KIP-516)

Listed all the same: librdkafka believes in record batches (format v2) only where both Produce v3 and Fetch v4 are.

Not here: v0 to v2, which Kafka 4 lists and refuses.
"""

from headwater.gateway.messages import Fields
from headwater.gateway.protocol import Code

VERSIONS = range(3, 14)
REASON = "headwater serves logs read-only; produce to the broker"


def respond(body: Fields) -> Fields | None:
    """A response that no producer retries; None for acks=0, whose sender waits for none."""
    if body["acks"] == 0:
        return None
    return {
        "responses": [
            {
                "name": topic.get("name"),
                "topic_id": topic.get("topic_id"),
                "partition_responses": [
                    {
                        "index": partition["index"],
                        "error_code": Code.TOPIC_AUTHORIZATION_FAILED,
                        "base_offset": -1,
                        "record_errors": [],
                        "error_message": REASON,
                    }
                    for partition in topic["partition_data"]
                ],
            }
            for topic in body["topic_data"]
        ]
    }
