"""A proxy in a thread of its own, for clients that block."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress

from headwater.gateway.config import GatewayConfig
from headwater.gateway.proxy.endpoint_registry import Address
from headwater.gateway.proxy.listeners import serve_proxy
from hydration.logs import Logs
from tests.s3server import free_ports


@contextmanager
def running_proxy(upstream: str, logs: Logs, nodes: int = 1) -> Iterator[str]:
    """ "host:port" to begin at. nodes: how many brokers there are, with ids from 1 on"""
    ports = tuple(f"{node_id}:{port}" for node_id, port in enumerate(free_ports(nodes), 1))
    config = GatewayConfig(listen="127.0.0.1:0", upstream=tuple(upstream.split(",")), upstream_port_map=ports)
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None], str]] = Future()

    async def main() -> None:
        addresses: asyncio.Future[Address] = asyncio.get_running_loop().create_future()
        running = asyncio.create_task(serve_proxy(logs, config, started=addresses.set_result))
        started.set_result((asyncio.get_running_loop(), running, "{}:{}".format(*await addresses)))
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
