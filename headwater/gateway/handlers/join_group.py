"""JoinGroup (key 11), versions 0 to 9, with which a member of the classic protocol begins: refused.

v1 rebalance time-out
v4 a member id is given before (KIP-394)
v5 group instance id (KIP-345)
v6 flexible
v7 protocol type (KIP-559)
v8 reason (KIP-800)
v9 skip_assignment (KIP-814)

Listed all the same: where it is absent some clients wait forever, without an error.

Not here: SyncGroup, Heartbeat and LeaveGroup, to which no client comes.
"""

from headwater.gateway.messages import Fields
from headwater.gateway.protocol import Code

VERSIONS = range(10)
REASON = (
    "this endpoint reads an archive and has no consumer groups: use assign() instead of subscribe(), commit to the broker or store "
    "offsets yourself (docs/questions.md), or point this group at the broker"
)


def respond() -> Fields:
    """The error that every client takes for final and passes on."""
    return {
        "error_code": Code.GROUP_AUTHORIZATION_FAILED,
        "generation_id": -1,
        "protocol_name": "",
        "leader": "",
        "member_id": "",
        "members": [],
    }
