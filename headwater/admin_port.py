"""The admin port of a running agent. The libraries of an HTTP server are imported by the agent alone, and only where it has the port."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headwater.admin.checks import Heartbeat, agent_health
from headwater.admin.fleet_watch import FleetWatch
from headwater.session import Session


@contextmanager
def open_admin_port(
    session: Session, heartbeat: Heartbeat, fleet: FleetWatch | None, gateway_listens: Callable[[], bool]
) -> Iterator[None]:
    """For the time of a block, unless it is switched off. Raises UsageError when it cannot be opened."""
    config = session.config.admin
    if not config.listen:
        yield
        return
    from headwater.admin.admin_routes import admin_app
    from headwater.admin.admin_server import AdminServer

    health = agent_health(
        heartbeat,
        gateway_listens=gateway_listens,
        store=session.bucket.meter,
        fleet=fleet,
        rescan_s=lambda: session.live.archival().rescan_s,
    )
    with AdminServer(config, admin_app(health)):
        yield
