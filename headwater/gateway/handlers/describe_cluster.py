"""DescribeCluster (key 60), versions 0 to 2: this endpoint is all of it.

v1 endpoint type (KIP-919)
v2 fenced brokers (KIP-1073)

Not here: controllers, and authorised operations.
"""

from headwater.gateway.handlers.metadata import Address
from headwater.gateway.messages import Fields
from headwater.gateway.protocol import Code
from headwater.gateway.topic_snapshot import TopicSnapshot

VERSIONS = range(3)


def respond(snapshot: TopicSnapshot, node_id: int, address: Address) -> Fields:
    return {
        "error_code": Code.NONE,
        "error_message": None,
        "cluster_id": snapshot.cluster_id,
        "controller_id": node_id,
        "brokers": [{"broker_id": node_id, "host": address[0], "port": address[1], "is_fenced": False}],
    }
