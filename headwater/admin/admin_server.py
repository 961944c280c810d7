"""The agent's API in a thread and an event loop of its own: nothing of it holds up the Kafka port, nor the other way round.

It listens on the socket in the data directory, and on the admin port where that is wanted.
"""

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType

import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from headwater.admin.access import Access, Conflict, LocalAccess, PortAccess
from headwater.admin.admin_connection import HEAD_BYTES_MAX, IDLE_S, AdminConnection
from headwater.admin.config import AdminConfig
from headwater.admin.credentials import RELOAD_S, Credentials
from headwater.admin.local_socket import listen_locally, remove_socket, socket_stamp
from headwater.admin.recent_answers import RecentAnswers
from headwater.gateway.acceptor import CannotListen, listen

CONNECTIONS_MAX = 128  # of the port; for one more the one goes that is idle for longest, or else it is closed at once
ADDRESS_CONNECTIONS_MAX = 64  # of them, from one address; the same for one more
LOCAL_CONNECTIONS_MAX = 128  # of the socket: who floods the port keeps no command out
HANDSHAKE_S = 5.0  # for TLS to begin
NO_DESCRIPTORS_S = 0.5
LAST_ANSWERS_S = 0.5  # at the end, for those that are being sent
STOP_S = 2.0  # for the thread to end: it is a daemon

log = structlog.get_logger()


class AdminServer:
    """Serves `app` from `with` on. The caller holds the lock of `data_dir`. conflict: see LocalAccess

    patient  begin without the port while another process has it, and try again every RELOAD_S

    Raises CannotListen when another process has the port, unless `patient`, and UsageError for a token or a certificate that cannot be
    used.
    """

    def __init__(
        self, config: AdminConfig, app: ASGIApp, data_dir: Path, conflict: Conflict = lambda _: "", *, patient: bool = False
    ) -> None:
        self._config, self._app, self._credentials = config, app, Credentials(config)
        self._data_dir = data_dir
        self._port: _Entrance | None = None
        if config.listen:
            try:
                self._port = self._open_port()
            except CannotListen as error:
                if not patient:
                    raise
                log.error(
                    "admin_not_started",
                    reason=str(error),
                    consequence=f"only this agent's own socket answers; the port is tried again every {RELOAD_S:g} s",
                )
        try:
            self._local = _Entrance(
                listen_locally(data_dir), LocalAccess(app, conflict), LOCAL_CONNECTIONS_MAX, lambda: None, hurries=False
            )
        except BaseException:
            if self._port is not None:
                self._port.listener.close()
            raise
        self._stamp = socket_stamp(data_dir)
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="admin", daemon=True)

    def _open_port(self) -> "_Entrance":
        access = PortAccess(self._app, tokens=lambda: self._credentials.tokens, hosts=self._config.hosts)
        return _Entrance(listen(self._config.listen, "admin"), access, CONNECTIONS_MAX, lambda: self._credentials.tls, hurries=True)

    @property
    def address(self) -> tuple[str, int]:
        """Of the port."""
        assert self._port is not None
        host, port = self._port.listener.getsockname()[:2]
        return host, port

    @property
    def connections(self) -> int:
        """That are open, or whose handshake has not ended."""
        return sum(len(each.open) for each in self._entrances)

    @property
    def _entrances(self) -> list["_Entrance"]:
        return [each for each in (self._local, self._port) if each is not None]

    def __enter__(self) -> "AdminServer":
        self._thread.start()
        if self._port is not None:
            log.info("admin_started", listen="{}:{}".format(*self.address))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(RuntimeError):  # it has ended by itself, and logged why
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(STOP_S)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        except Exception:
            log.exception("admin_failed")

    async def _serve(self) -> None:
        accepting = [self._local.accept(), *([self._accept_at_port()] if self._config.listen else [])]
        work = [asyncio.create_task(each) for each in (*accepting, self._reload(), self._stop.wait())]
        try:
            done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            for task in work:
                task.cancel()
            if socket_stamp(self._data_dir) == self._stamp:  # this thread may outlive the lock: then another agent's is there
                remove_socket(self._data_dir)
            await asyncio.gather(*(each.close() for each in self._entrances))

    async def _accept_at_port(self) -> None:
        while self._port is None:
            await asyncio.sleep(RELOAD_S)
            with suppress(CannotListen):
                self._port = self._open_port()
                log.info("admin_started", listen="{}:{}".format(*self.address))
        await self._port.accept()

    async def _reload(self) -> None:
        while True:
            await asyncio.sleep(RELOAD_S)
            try:
                self._credentials.reload()
            except Exception:  # a defect must not end the API
                log.exception("admin_files_not_looked_at")
            for each in self._entrances:
                each.recent.forget()


@dataclass(eq=False, slots=True)
class _Client:
    """
    host       its address, "" of the socket
    begun_s    when it was accepted, by the loop's clock
    handshake  until its end, in TLS or without; None before it begins
    """

    host: str
    begun_s: float
    handshake: asyncio.Task[None] | None = None
    connection: AdminConnection | None = None

    @property
    def idle_since_s(self) -> float | None:
        """Return since when it is idle; None while a request is being answered. A handshake is idle from its begin on."""
        return self.begun_s if self.connection is None or self.connection.transport is None else self.connection.idle_since_s

    def end(self) -> None:
        if self.connection is not None and self.connection.transport is not None:
            self.connection.abort()
        elif self.handshake is not None:
            self.handshake.cancel()


def _close_cancelled(client: socket.socket, handshake: asyncio.Task[None]) -> None:
    """Close what the transport does not: the task may have been cancelled before its first step, or before the transport was connected."""
    if handshake.cancelled():
        client.close()


class _Entrance:
    """One way to the app: its listener, and the connections that came by it.

    tls      for the handshakes from now on
    hurries  are clients disconnected that take nothing? Not a command of this machine, whose reader may pause (`| less`)
    """

    def __init__(
        self,
        listener: socket.socket,
        access: Access,
        connections_max: int,
        tls: Callable[[], ssl.SSLContext | None],
        *,
        hurries: bool,
    ) -> None:
        self._hurries = hurries
        self.listener, self._connections_max, self._tls = listener, connections_max, tls
        self.open: set[_Client] = set()
        self._state = ServerState()
        self.recent = RecentAnswers(access, time.monotonic)
        self._http = uvicorn.Config(
            self.recent,
            interface="asgi3",
            http=AdminConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",  # what a client sends that is no HTTP is no news
            access_log=False,
            proxy_headers=False,  # nobody may say who else is calling
            server_header=False,
            date_header=False,
            timeout_keep_alive=IDLE_S,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        )
        self._http.load()

    async def accept(self) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as handshakes:
            while True:
                try:
                    client, address = await loop.sock_accept(self.listener)
                except OSError:  # out of descriptors, or the peer has left already
                    await asyncio.sleep(NO_DESCRIPTORS_S)
                    continue
                host = address[0] if isinstance(address, tuple) else ""
                if not self._has_room(host):
                    client.close()
                    log.warning("admin_connection_refused", connections_max=self._connections_max)
                    continue
                opened = _Client(host, loop.time())
                self.open.add(opened)
                opened.handshake = handshakes.create_task(self._connect(client, opened))
                opened.handshake.add_done_callback(partial(_close_cancelled, client))

    def _has_room(self, host: str) -> bool:
        """For one more connection from there: made, where there is none, by ending the one that is idle for longest."""
        same = [client for client in self.open if client.host == host]
        is_crowded = host != "" and len(same) >= ADDRESS_CONNECTIONS_MAX
        if len(self.open) < self._connections_max and not is_crowded:
            return True
        idle = [(since_s, client) for client in (same if is_crowded else self.open) if (since_s := client.idle_since_s) is not None]
        if not idle:
            return False
        _, oldest = min(idle, key=lambda item: item[0])
        self.open.discard(oldest)
        oldest.end()
        return True

    async def _connect(self, client: socket.socket, opened: _Client) -> None:
        """Its handshake, if there is TLS; then it is uvicorn's."""
        lost = partial(self.open.discard, opened)

        def connection() -> AdminConnection:
            opened.connection = AdminConnection(self._http, self._state, self.recent, lost, hurries=self._hurries)
            return opened.connection

        try:
            tls = self._tls()
            await asyncio.get_running_loop().connect_accepted_socket(
                connection,
                client,
                ssl=tls,
                ssl_handshake_timeout=HANDSHAKE_S if tls else None,
            )
        except OSError:  # the client's trouble
            client.close()
            lost()
        except Exception:  # a defect must end this connection alone
            log.exception("admin_connection_failed")
            client.close()
            lost()

    async def close(self) -> None:
        """Whoever is being answered learns the end of it, if that is at hand."""
        self.listener.close()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=LAST_ANSWERS_S)
        for connection in list(self._state.connections):
            assert isinstance(connection, AdminConnection)
            connection.abort()
