"""The gateway in its own thread, for the time of a block."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from headwater.gateway.config import GatewayConfig
from headwater.gateway.handlers.metadata import Address
from headwater.gateway.server import serve
from hydration.logs import Logs


@contextmanager
def running_gateway(logs: Logs, config: GatewayConfig) -> Iterator[str]:
    """Serve `logs`; the block gets "host:port". Raises why the gateway cannot listen."""
    address: Future[Address] = Future()
    loop = asyncio.new_event_loop()

    def work() -> None:
        try:
            loop.run_until_complete(task)
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            if address.done():
                raise
            address.set_exception(error)
        finally:
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    task = loop.create_task(serve(logs, config, started=address.set_result))
    thread = threading.Thread(target=work, name="gateway")
    thread.start()
    try:
        yield "{}:{}".format(*address.result())
    finally:
        if thread.is_alive():
            loop.call_soon_threadsafe(task.cancel)
        thread.join()
