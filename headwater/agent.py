"""The agent: archives the log directories and serves them, in one process, until it is stopped."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import structlog

from archival.schedule.scheduler import Scheduler
from archival.schedule.watch import Watch
from archival.upkeep import Upkeep
from headwater import __version__
from headwater.admin.checks import BEAT_S, Heartbeat
from headwater.admin.store_probe import StoreProbe
from headwater.admin_port import Vitals, open_admin_port
from headwater.agent_verbs import reload_config
from headwater.config import Config
from headwater.gateway.handlers.metadata import Address
from headwater.gateway.proxy.listeners import serve_proxy
from headwater.gateway.server import serve
from headwater.live_config import LiveConfig
from headwater.service_manager import ServiceManager
from headwater.session import Session, open_session
from headwater.wiring import open_logs
from headwater_core.clock import SystemClock
from headwater_core.control.control_records import Node
from headwater_core.errors import HeadwaterError, UsageError
from headwater_core.threads import DaemonThreads
from hydration.logs import Logs
from manifests.head import Head

T = TypeVar("T")
log = structlog.get_logger()


def run(
    config: Config, *, started: Callable[[Address], None] = lambda _: None, reload: Callable[[], Config] | None = None
) -> signal.Signals:
    """Archive and serve until SIGTERM or SIGINT; returns which. SIGHUP reads the configuration again.

    started  called with the gateway's address when it listens
    reload   reads the configuration again: see LiveConfig

    Raises Locked when another agent holds the data directory, and why the gateway cannot listen.
    """
    with (
        open_session(config, patient=True, reload=reload) as session,
        open_logs(config, session.bucket, indexed=True, patient=True, priority_for=session.live.read_priority_for) as logs,
        StoreProbe(session.bucket.store, session.bucket.meter).probing(),
        open_admin_port(session, logs, vitals := Vitals.of(session, logs)),
    ):
        try:
            return asyncio.run(_run(session, logs, vitals, started))
        except BaseExceptionGroup as group:
            raise _first(group) from group


async def _run(session: Session, logs: Logs, vitals: Vitals, started: Callable[[Address], None]) -> signal.Signals:
    loop, manager = asyncio.get_running_loop(), ServiceManager.of(os.environ)
    beating = asyncio.create_task(_beat(vitals.heartbeat))
    signalled: asyncio.Future[signal.Signals] = loop.create_future()
    stop = threading.Event()
    # Each kind of work has its own threads, as the verbs have: none waits for another.
    archiver, collector = ThreadPoolExecutor(1, "archiver"), ThreadPoolExecutor(1, "collector")
    cluster = DaemonThreads(1, "cluster")  # a snapshot that a silent store holds up is not waited for: it may end anywhere
    downloads = DaemonThreads(1, "downloads")  # likewise: a download continues after the next start

    def stopping(by: signal.Signals) -> None:
        if signalled.done():
            os._exit(128 + by)  # the second signal: work in progress may be interrupted anywhere
        signalled.set_result(by)
        stop.set()
        vitals.verb_threads.stop()
        manager.stopping()
        log.info("stop_requested", signal=by.name)  # last: even if it fails, the agent stops

    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, stopping, each)
    reloads = partial(threading.Thread, target=_reload_on_signal, args=(session.live, manager), daemon=True)
    loop.add_signal_handler(signal.SIGHUP, lambda: reloads().start())

    def listening(address: Address) -> None:
        threading.Thread(target=_announce, args=(session, "{}:{}".format(*address)), name="announce", daemon=True).start()
        manager.ready()
        vitals.listens.set()
        started(address)

    upkeep = Upkeep(session.fleet) if session.fleet is not None else None
    try:
        async with asyncio.TaskGroup() as tasks:
            config, leaving = session.config.gateway, asyncio.Event()
            serving = _proxy(session) if config.upstream else serve
            gateway = tasks.create_task(serving(logs, config, started=listening, meter=vitals.gateway, stopping=leaving))
            watched = tasks.create_task(manager.watched())
            if session.fleet is not None and upkeep is not None and vitals.work is not None:

                def committed(head: Head) -> None:
                    logs.update_manifest(head)
                    vitals.committed(head)

                session.fleet.committed = committed
                scheduler = Scheduler(vitals.work, clock=SystemClock(), random=Random(), settings=session.live.archival)
                vitals.scheduler = scheduler
                session.live.changed = session.pauses.changed = vitals.reconsider
                vitals.reconsider()  # the pauses may have been read before
                tasks.create_task(_run_in(archiver, partial(keep_archiving, scheduler, session.config.log.dirs, stop)))
                tasks.create_task(_run_in(collector, partial(upkeep.run, stop)))
            if session.cluster is not None:
                cluster.submit(session.cluster.run, stop)
            if session.downloads is not None:
                downloads.submit(session.downloads.run, stop)
            try:
                received = await signalled
            except BaseException:
                gateway.cancel()
                raise
            finally:
                stop.set()
                vitals.listens.clear()
                leaving.set()
                watched.cancel()
    finally:
        cluster.shutdown(wait=False)
        downloads.shutdown(wait=False)
        for close in (vitals.verb_threads.close, collector.shutdown, archiver.shutdown):
            await asyncio.to_thread(close)  # beside the loop, which still hears the second signal
        beating.cancel()
    if upkeep is not None:
        await asyncio.to_thread(upkeep.hand_over)
    log.info("agent_stopped", signal=received.name)
    return received


def _proxy(session: Session) -> Callable[..., Coroutine[Any, Any, None]]:
    from headwater.broker.upstream import open_upstream

    config = session.config.gateway
    upstream = open_upstream(config.upstream, config.upstream_properties)
    return partial(serve_proxy, earliest_for=session.live.earliest_for, upstream=upstream)


async def _beat(heartbeat: Heartbeat) -> None:
    while True:
        heartbeat.beat()
        await asyncio.sleep(BEAT_S)


def keep_archiving(scheduler: Scheduler, dirs: Sequence[Path], stop: threading.Event) -> None:
    """Partition by partition, as something happens to them in `dirs`, and all of them in each rescan."""
    with Watch(dirs) as watch:
        scheduler.run(watch, stop)


def _reload_on_signal(live: LiveConfig, manager: ServiceManager) -> None:
    with manager.reload(), suppress(UsageError):  # it is logged
        reload_config(live)


async def _run_in(threads: Executor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(threads, work)


def _announce(session: Session, gateway: str) -> None:
    """Announce this agent to the others. Nothing depends on it: without a leader of the control log, the announcement is left out."""
    try:
        session.control.publish(
            Node(node_id=session.config.node.id, started_ms=SystemClock().now_ms(), version=__version__, gateway=gateway)
        )
    except HeadwaterError as error:
        log.warning("agent_not_announced", reason=str(error))


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
