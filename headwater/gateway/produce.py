"""Produce is listed, because librdkafka reads record batches only from brokers that list it, and refused."""

from headwater.gateway.apis import Code
from headwater.gateway.messages import Fields

REASON = "headwater serves logs read-only; produce to the broker"


def refuse(body: Fields) -> Fields | None:
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
