"""Which replica of a partition archives it: the leader; where no leader is known, a replica that could become one."""

from dataclasses import dataclass

from headwater_core.segments.local_log import LocalLog


@dataclass(frozen=True, slots=True)
class Acting:
    """This log may be archived, under this leader epoch."""

    leader_epoch: int


@dataclass(frozen=True, slots=True)
class Standby:
    """It may not, and why."""

    reason: str


class Unfit(Standby):
    """Nor may another replica instead, until a person has acted."""


def archiving_role(log: LocalLog) -> Acting | Standby:
    """The role of the replica that `log` is a look at.

    Without a broker's metadata log (an owned directory) nothing says who leads, and the replica acts. While a partition has no leader, its
    last in-sync replicas are as good as it was; under eligible leader replicas none is in sync then, and a replica that lags acts
    under its own newest epoch, which is older than what the head has followed.
    """
    newest, leadership = log.epochs.newest, log.leadership
    if newest is None and (log.high_watermark or 0) > log.start_offset:
        is_led_elsewhere = leadership is not None and not leadership.is_ours
        return (Standby if is_led_elsewhere else Unfit)(
            "the log has records and no leader epoch history (leader-epoch-checkpoint): nothing says which leadership wrote them; the "
            "broker begins a history when it is elected leader the next time"
        )
    if leadership is None:
        return Acting(-1 if newest is None else newest)
    if leadership.leader == -1:
        if leadership.in_sync and leadership.node not in leadership.in_sync:
            return Standby("no leader, and this replica is not in sync")
        return Acting(-1 if newest is None else newest)
    if not leadership.is_ours:
        return Standby(f"follower of broker {leadership.leader}")
    if newest is None or newest < leadership.leader_epoch:
        return Standby(f"leader epoch {leadership.leader_epoch} has not reached the log's epoch history yet")
    return Acting(newest)
