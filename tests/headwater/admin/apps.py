"""The agent's API without an agent: over a registry and verbs of the test's own."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from starlette.applications import Starlette

from headwater.admin.admin_routes import admin_app
from headwater.admin.admin_server import AdminServer
from headwater.admin.config import AdminConfig
from headwater.admin.health import Health
from headwater.admin.metrics import Metrics
from headwater.admin.operation_routes import OperationRoutes
from headwater.admin.operations import Operations, new_operation_id
from headwater.admin.verb import Verb
from headwater.admin.verb_threads import VerbThreads
from headwater_core.clock import SystemClock

NO_CHECKS = Health(live={}, ready={})


def an_app(health: Health = NO_CHECKS, routes: OperationRoutes | None = None) -> Starlette:
    return admin_app(health, cast(Metrics, None), None, routes or some_routes(), SystemClock(), "1.2.3")


def some_routes(*verbs: Verb) -> OperationRoutes:
    operations = Operations(SystemClock(), new_operation_id)
    return OperationRoutes(operations, VerbThreads(operations), verbs)


@contextmanager
def serving_locally(data_dir: Path, verbs: Sequence[Verb] = ()) -> Iterator[tuple[Operations, VerbThreads]]:
    """The API with these verbs, in the socket of `data_dir`."""
    operations = Operations(SystemClock(), new_operation_id)
    threads = VerbThreads(operations)
    with AdminServer(AdminConfig(listen=""), an_app(routes=OperationRoutes(operations, threads, verbs)), data_dir):
        try:
            yield operations, threads
        finally:
            threads.close()
