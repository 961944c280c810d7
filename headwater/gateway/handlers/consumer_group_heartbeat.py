"""ConsumerGroupHeartbeat (key 68), versions 0 and 1, with which a member of the protocol of KIP-848 begins: refused.

v1 a regular expression; member ids of the client's own (KIP-1082)
"""

from headwater.gateway.handlers.join_group import REASON
from headwater.gateway.messages import Fields
from headwater.gateway.protocol import Code

VERSIONS = range(2)


def respond() -> Fields:
    """The error that every client takes for final, and a sentence for its log."""
    return {
        "error_code": Code.GROUP_AUTHORIZATION_FAILED,
        "error_message": REASON,
        "member_id": "",
        "member_epoch": -1,
        "heartbeat_interval": 5000,
    }
