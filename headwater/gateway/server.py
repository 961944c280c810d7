"""The standalone port: requests of clients are answered from the logs, and from the archive."""

import asyncio
import errno
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from types import TracebackType

import structlog

from headwater.gateway.acceptor import Acceptor, listen, port_certificate
from headwater.gateway.client_facts import HEAD_BYTES
from headwater.gateway.config import GatewayConfig, split_address
from headwater.gateway.connection import LONG_BYTES_MAX, Connection, LongRequests, PeerGone
from headwater.gateway.gateway_meter import GatewayMeter
from headwater.gateway.handlers.metadata import Address
from headwater.gateway.open_connections import OpenConnection
from headwater.gateway.process import prepare_process, settle_process
from headwater.gateway.requests import Reply, Requests
from headwater.gateway.response import FileSlice, Frame
from headwater.gateway.unread_responses import UnreadResponse, UnreadResponses
from headwater_core.clock import Clock, SystemClock
from hydration.disk_threads import DiskThreads
from hydration.logs import Logs

BUFFERS_MAX = 1024  # in one system call; Linux takes no more (IOV_MAX)
DISK_ERRNOS = frozenset((errno.EIO, errno.ESTALE, errno.ENXIO, errno.ENODEV, errno.EREMOTEIO))  # of the file, never of the socket
READ_BYTES = 1 << 20  # read from disk at once, for a slice that the page cache does not have
READERS = 32  # such reads at once, of each disk

Buffer = bytes | memoryview

log = structlog.get_logger()


class Gateway:
    """A listening endpoint over `logs`. `run()` serves until it is cancelled; its connections end with it.

    Raises UsageError for an address or a certificate that cannot be used.
    """

    def __init__(self, logs: Logs, config: GatewayConfig, clock: Clock | None = None, meter: GatewayMeter | None = None) -> None:
        self._logs, self._config, self._clock = logs, config, clock or SystemClock()
        self._meter = meter or GatewayMeter()
        self._certificate = port_certificate(config)
        self._listener = listen(config.listen)
        self._executor = ThreadPoolExecutor(config.workers, thread_name_prefix="gateway")
        self._readers = DiskThreads(READERS, "gateway-read")  # nothing else waits for disks in them
        self._requests = Requests(logs, config, self._executor, self._clock)
        self._advertised = split_address(config.advertised) if config.advertised else None
        self._long_requests = LongRequests(max(LONG_BYTES_MAX, config.request_bytes_max))
        self._unread = UnreadResponses(config.unread_bytes_max, self._meter)

    @property
    def address(self) -> Address:
        host, port = self._listener.getsockname()[:2]
        return host, port

    async def run(self, stopping: asyncio.Event | None = None) -> None:
        """Serve until it is cancelled, then end all connections; or until `stopping` is set: then what is in flight is answered before."""
        stopping = stopping or asyncio.Event()
        connections_max = prepare_process(self._config.connections_max)
        try:
            await self._requests.load_schemas()
            await self._requests.snapshots.snapshot()
            settle_process()
            with self._logs.kept_fresh():
                async with asyncio.TaskGroup() as tasks:
                    acceptor = Acceptor(tasks, self._config, connections_max, self._meter, self._clock, self._certificate)
                    with closing(acceptor):
                        acceptor.open(self._listener, self._answer_all)
                        await stopping.wait()
                        await acceptor.drain(self._config.drain_s)
        finally:
            self._listener.close()
            await self._requests.close()
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._readers.close(wait=False)

    async def _answer_all(self, opened: OpenConnection) -> None:
        """Answer requests one by one, in their order, as brokers do; what a client sends in between waits."""
        client = opened.client
        host, port = client.getsockname()[:2]
        address, opened.is_served = self._advertised or (host, port), True
        with Connection(opened.tls or client, self._config, self._long_requests, opened.facts.peer) as connection:
            while (frame := await connection.next_frame()) is not None:
                api_key, began_s = int.from_bytes(frame[:2], "big"), self._clock.monotonic_s()
                opened.idle_since_s, opened.is_receiving = None, False
                if opened.facts.wants(api_key):
                    opened.facts.note(frame[:HEAD_BYTES])
                responding = self._requests.answer(frame, address, connection)
                del frame  # it may be as long as a request may be, and its response may take a while
                reply = await responding
                self._meter.answered(api_key, self._clock.monotonic_s() - began_s)
                connection.forget_request()
                if reply is not None:
                    await self._send(opened, reply)
                    del reply  # its frame may be long
                opened.idle_since_s, opened.is_receiving = self._clock.monotonic_s(), True
                if opened.ends:
                    return

    async def _send(self, opened: OpenConnection, reply: Reply) -> None:
        patience_s = self._config.send_timeout_s + reply.frame.size_bytes / self._config.slowest_bytes_per_s
        unread = UnreadResponse(opened.client, opened.ip, reply.frame)
        try:
            self._unread.add(unread)
            if opened.tls is not None:
                await opened.tls.send_parts(reply.frame.parts, patience_s, self._readers)
            else:
                await send(opened.client, reply.frame, patience_s, self._readers)
        finally:
            self._unread.remove(unread)
            reply.close()


async def serve(
    logs: Logs,
    config: GatewayConfig,
    *,
    started: Callable[[Address], None] = lambda _: None,
    clock: Clock | None = None,
    meter: GatewayMeter | None = None,
    stopping: asyncio.Event | None = None,
) -> None:
    """Serve until cancelled, or until `stopping` is set (see Gateway.run).

    started  called with the address as soon as connections are accepted (listen port 0 takes a free one)
    """
    gateway = Gateway(logs, config, clock, meter)
    log.info("gateway_started", listen="{}:{}".format(*gateway.address))
    started(gateway.address)
    await gateway.run(stopping)


# -- sending ------------------------------------------------------------------------------------------------------


async def send(client: socket.socket, frame: Frame, timeout_s: float, readers: DiskThreads) -> None:
    """Send all parts, file ranges straight from the page cache. Raises PeerGone when they are not taken within `timeout_s`.

    readers   for what has to be read from a disk first
    """
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    at_hand: list[Buffer] = []
    for part in frame.parts:
        if isinstance(part, bytes):
            at_hand.append(part)
        elif part.file.memory is not None:
            at_hand.append(part.file.memory[part.position : part.position + part.length])
        else:
            await _send_buffers(client, at_hand, socket.MSG_MORE, deadline_s)
            at_hand = []
            await _send_slice(client, part, deadline_s, readers)
    await _send_buffers(client, at_hand, 0, deadline_s)


async def _send_buffers(client: socket.socket, buffers: list[Buffer], flags: int, deadline_s: float) -> None:
    while buffers:
        try:
            sent = client.sendmsg(buffers[:BUFFERS_MAX], (), flags)
        except (BlockingIOError, InterruptedError):
            await _writable(client, deadline_s)
        else:
            buffers = after_bytes(buffers, sent)


def after_bytes(buffers: list[Buffer], size_bytes: int) -> list[Buffer]:
    """What is left of `buffers` without their first `size_bytes`."""
    for at, buffer in enumerate(buffers):
        if size_bytes < len(buffer):
            return [memoryview(buffer)[size_bytes:], *buffers[at + 1 :]] if size_bytes else buffers[at:]
        size_bytes -= len(buffer)
    return []


async def _send_slice(client: socket.socket, part: FileSlice, deadline_s: float, readers: DiskThreads) -> None:
    """What the page cache does not have is read in a thread first: a slow disk holds up this client alone."""
    out, source = client.fileno(), part.file.fileno()
    position, end = part.position, part.position + part.length
    cached_to = position
    while position < end:
        if position >= cached_to:
            cached_to = min(position + READ_BYTES, end)
            if not _is_cached(source, position, cached_to):
                reading = readers.submit(part.file.device, partial(_read_in, source, position, cached_to))
                try:
                    async with asyncio.timeout_at(deadline_s):
                        await asyncio.wrap_future(reading)
                except TimeoutError as error:
                    raise PeerGone(f"{part.file.where} was not read in time: its disk hangs") from error
        try:
            sent = os.sendfile(out, source, position, cached_to - position)
        except (BlockingIOError, InterruptedError):
            await _writable(client, deadline_s)
            continue
        except OSError as error:
            if error.errno not in DISK_ERRNOS:
                raise
            part.file.fail(error.strerror or str(error))
            raise PeerGone(f"{part.file.where}, byte {position}: {error.strerror}; the client retries") from error
        if not sent:  # truncated by another process: the frame cannot be finished as announced
            part.file.doubt()
            raise PeerGone(f"a file ended {end - position} bytes before its slice; the client retries")
        position += sent


def _is_cached(source: int, start: int, end: int) -> bool:
    """Whether the page cache has both ends of this range. Where that is not known, as on tmpfs, it counts as cached."""
    try:
        return all(os.preadv(source, (bytearray(1),), at, os.RWF_NOWAIT) >= 0 for at in (start, end - 1))
    except BlockingIOError:
        return False
    except OSError:
        return True


def _read_in(source: int, start: int, end: int) -> None:
    """Have the page cache read a range, and wait for its end."""
    with suppress(OSError):  # sending it will show what is wrong
        os.posix_fadvise(source, start, end - start, os.POSIX_FADV_WILLNEED)
        os.pread(source, 1, end - 1)


async def _writable(client: socket.socket, deadline_s: float) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_writer(client, _wake_writer, ready, None)
    timer = loop.call_at(deadline_s, _wake_writer, ready, "a response was not taken in time")
    try:
        await ready
    finally:
        timer.cancel()
        loop.remove_writer(client)


def _wake_writer(ready: "asyncio.Future[None]", failure: str | None) -> None:
    if ready.done():
        return
    if failure is None:
        ready.set_result(None)
    else:
        ready.set_exception(PeerGone(failure))


# -- in a thread --------------------------------------------------------------------------------------------------


class GatewayServer:
    """The same in a thread of its own, for callers without an event loop. Accepts connections from `with` on."""

    def __init__(self, logs: Logs, config: GatewayConfig) -> None:
        self._gateway = Gateway(logs, config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._serving: asyncio.Task[None] | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gateway", daemon=True)

    @property
    def address(self) -> Address:
        return self._gateway.address

    @property
    def bootstrap_servers(self) -> str:
        return "{}:{}".format(*self.address)

    def __enter__(self) -> "GatewayServer":
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._loop is not None
        assert self._serving is not None
        with suppress(RuntimeError):  # it has ended by itself, and logged why
            self._loop.call_soon_threadsafe(self._serving.cancel)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        finally:
            self._started.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._serving = asyncio.create_task(self._gateway.run())
        self._started.set()
        try:
            with suppress(asyncio.CancelledError):
                await self._serving
        except Exception:
            log.exception("gateway_failed")
