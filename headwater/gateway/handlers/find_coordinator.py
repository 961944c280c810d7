"""FindCoordinator (key 10), versions 0 to 6: this endpoint coordinates every key.

v1 key type
v3 flexible
v4 several keys (KIP-699)
v5 TRANSACTION_ABORTABLE (KIP-890)
v6 share groups (KIP-932)

Not here: coordinators. Joining and committing are refused; the error "not available" would keep clients retrying forever.
"""

from headwater.gateway.handlers.metadata import Address
from headwater.gateway.messages import Fields
from headwater.gateway.protocol import Code

VERSIONS = range(7)


def respond(body: Fields, node_id: int, address: Address) -> Fields:
    here = {"error_code": Code.NONE, "error_message": None, "node_id": node_id, "host": address[0], "port": address[1]}
    return {**here, "coordinators": [{**here, "key": key} for key in dict.fromkeys(body.get("coordinator_keys") or ())]}
