"""A proxy in a thread of its own, for clients that block."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress

from headwater.gateway.config import GatewayConfig
from headwater.gateway.proxy.archive_side import ArchiveSide
from headwater.gateway.proxy.endpoint_registry import BrokerPorts
from headwater.gateway.proxy.listeners import ProxyConfig, ProxyServer
from headwater_core.clock import SystemClock
from hydration.logs import Logs
from tests.s3server import free_ports


@contextmanager
def running_proxy(upstream: str, logs: Logs, nodes: int = 1) -> Iterator[str]:
    """ "host:port" to begin at. nodes: how many brokers there are, with ids from 1 on"""
    ports = BrokerPorts(base_port=1, ports=dict(enumerate(free_ports(nodes), 1)))
    config = ProxyConfig(listen="127.0.0.1:0", upstream=upstream.split(","), ports=ports)
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None], str]] = Future()

    async def main() -> None:
        with ThreadPoolExecutor(8) as executor:
            server = ProxyServer(config, ArchiveSide(logs, GatewayConfig(), executor, SystemClock()))
            running = asyncio.create_task(server.run())
            started.set_result((asyncio.get_running_loop(), running, "{}:{}".format(*server.address)))
            with suppress(asyncio.CancelledError):
                await running

    thread = threading.Thread(target=lambda: asyncio.run(main()), name="proxy")
    thread.start()
    loop, running, address = started.result()
    try:
        yield address
    finally:
        loop.call_soon_threadsafe(running.cancel)
        thread.join()
