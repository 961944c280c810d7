"""The admin port in a thread and an event loop of its own: nothing of it holds up the Kafka port, nor the other way round."""

import asyncio
import socket
import threading
from contextlib import suppress
from functools import partial
from types import TracebackType

import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from headwater.admin.access import Access
from headwater.admin.admin_connection import HEAD_BYTES_MAX, IDLE_S, AdminConnection
from headwater.admin.config import AdminConfig
from headwater.admin.credentials import RELOAD_S, Credentials
from headwater.gateway.server import listen

CONNECTIONS_MAX = 128  # one more is closed at once
HANDSHAKE_S = 5.0  # for TLS to begin
NO_DESCRIPTORS_S = 0.5
STOP_S = 2.0  # for the thread to end: it is a daemon

log = structlog.get_logger()


class AdminServer:
    """Serves `app` from `with` on. Raises UsageError when it cannot listen, and for a token or a certificate that cannot be used."""

    def __init__(self, config: AdminConfig, app: ASGIApp) -> None:
        self._credentials = Credentials(config)
        self._listener = listen(config.listen, "admin")
        self._http = uvicorn.Config(
            Access(app, token=lambda: self._credentials.token, hosts=config.hosts),
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
        self._state = ServerState()
        self._open: set[object] = set()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="admin", daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._listener.getsockname()[:2]
        return host, port

    @property
    def connections(self) -> int:
        """That are open, or whose handshake has not ended."""
        return len(self._open)

    def __enter__(self) -> "AdminServer":
        self._thread.start()
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
        work = [asyncio.create_task(each) for each in (self._accept(), self._reload(), self._stop.wait())]
        try:
            done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            for each in work:
                each.cancel()
            self._listener.close()
            for connection in list(self._state.connections):
                assert isinstance(connection, AdminConnection)
                connection.abort()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as handshakes:
            while True:
                try:
                    client, _ = await loop.sock_accept(self._listener)
                except OSError:  # out of descriptors, or the peer has left already
                    await asyncio.sleep(NO_DESCRIPTORS_S)
                    continue
                if len(self._open) >= CONNECTIONS_MAX:
                    client.close()
                    log.warning("admin_connection_refused", connections_max=CONNECTIONS_MAX)
                    continue
                handshakes.create_task(self._connect(client))

    async def _connect(self, client: socket.socket) -> None:
        """Its handshake, if there is TLS; then it is uvicorn's."""
        connection, tls = object(), self._credentials.tls
        lost = partial(self._open.discard, connection)
        self._open.add(connection)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: AdminConnection(self._http, self._state, lost),
                client,
                ssl=tls,
                ssl_handshake_timeout=HANDSHAKE_S if tls else None,
            )
        except OSError:  # the client's trouble
            client.close()
            lost()

    async def _reload(self) -> None:
        while True:
            await asyncio.sleep(RELOAD_S)
            self._credentials.reload()
