"""What /livez and /readyz check, in terms of what the agent knows."""

from collections.abc import Callable, Collection, Mapping

from headwater.admin.fleet_watch import FleetWatch
from headwater.admin.health import Check, Health
from headwater_core.clock import Clock
from headwater_core.counts import count_text
from headwater_core.objectstore.store_meter import StoreMeter

BEAT_S = 1.0  # between two beats of the agent's event loop
BEAT_LATE_S = 60.0  # it does not turn any more; a machine that swaps is slow, and no restart helps it
STORE_LATE_S = 30.0  # how long a store may fail before the agent is not ready: S3 clients retry for most of that


class Heartbeat:
    """Of the event loop that serves Kafka clients and has all other work done."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._beat_s = clock, clock.monotonic_s()

    def beat(self) -> None:
        self._beat_s = self._clock.monotonic_s()

    def check(self) -> str:
        late_s = self._clock.monotonic_s() - self._beat_s
        return f"the event loop has not turned for {late_s:.0f} s" if late_s > BEAT_LATE_S else ""


def agent_health(
    heartbeat: Heartbeat,
    *,
    gateway_listens: Callable[[], bool],
    store: StoreMeter,
    fleet: FleetWatch | None,
    rescan_s: Callable[[], float],
    damaged: Callable[[], Mapping[str, Collection[str]]] = dict,
    unreached: Callable[[], Mapping[int | None, str]] | None = None,
) -> Health:
    """
    damaged   objects whose damage is known, by partition
    fleet     None where there are no log directories: then there is no such check
    rescan_s  how often they are listed, as it is set now
    unreached  brokers that a proxy has not reached, by node id, and why; None: of all, there. None: it is none
    """
    ready: dict[str, Check] = {
        "gateway": lambda: "" if gateway_listens() else "it does not listen yet",
        "store": lambda: _store_failure(store),
    }
    if fleet is not None:
        ready["log_directories"] = lambda: fleet.unreadable(rescan_s())
    notices: dict[str, Check] = {"archive": lambda: _damage(damaged())}
    if unreached is not None:
        ready["upstream"] = lambda: unreached().get(None, "")
        notices["brokers"] = lambda: _unreached(unreached())
    return Health(live={"event_loop": heartbeat.check}, ready=ready, notices=notices)


def _unreached(reasons: Mapping[int | None, str]) -> str:
    """It fails no check: clients of other brokers are served."""
    found = [f"{node_id} ({reason})" for node_id, reason in dict(reasons).items() if node_id is not None]
    return f"not reached: {', '.join(found)}" if found else ""


def _damage(damaged: Mapping[str, Collection[str]]) -> str:
    """It fails no check: one damaged object would take every agent that has read it from its clients, with all that is sound."""
    objects = sum(map(len, damaged.values()))
    return f"{count_text(objects, 'object')} damaged in the store; `headwater status` says which" if objects else ""


def _store_failure(store: StoreMeter) -> str:
    """A store that is not called, because nothing is to be done, is as it was when it was; a failing one StoreProbe asks again."""
    health = store.health()
    if health.failing_s > STORE_LATE_S:
        return f"unavailable for {health.failing_s:.0f} s: {health.reason}"
    return "" if health.answered_s is not None else f"it has not answered yet{': ' if health.reason else ''}{health.reason}"
