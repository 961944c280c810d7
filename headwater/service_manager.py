"""The service manager that has started this process (systemd's `Type=notify`): is told when the process serves, reloads and stops, and,
where it asks for that, that it still turns.

The protocol is sd_notify(3): datagrams of `NAME=VALUE` lines to the socket that the environment names. Nobody answers, and whatever goes
wrong here harms nothing but the service manager's knowledge.
"""

import asyncio
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import structlog

log = structlog.get_logger()


class ServiceManager:
    """One that was not named takes every message and does nothing. Safe to use from any thread; never blocks.

    address     of its socket, as in NOTIFY_SOCKET: a path, or a name in the abstract name space after "@"; "" where there is none
    watchdog_s  after so long without a sign of life it ends the process; None: it does not watch
    """

    def __init__(self, address: str = "", watchdog_s: float | None = None) -> None:
        self.watchdog_s = watchdog_s
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._is_ready = self._reported = False

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "ServiceManager":
        """The one that the environment names. A watchdog that is meant for another process, or makes no sense, is left out."""
        period, process = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
        watches = period.isascii() and period.isdecimal() and int(period) > 0 and process in ("", str(os.getpid()))
        return cls(environment.get("NOTIFY_SOCKET", ""), int(period) / 1e6 if watches else None)

    def ready(self) -> None:
        """What the process was started for works."""
        self._is_ready = True
        self._send("READY=1")

    @contextmanager
    def reload(self) -> Iterator[None]:
        """Within, the configuration is read again."""
        if self._is_ready:
            self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            yield
        finally:
            if self._is_ready:
                self._send("READY=1")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    async def watched(self) -> None:
        """Give signs of life, twice as often as the watchdog wants them, as long as the event loop turns."""
        if self._address and self.watchdog_s is not None:
            while True:
                self._send("WATCHDOG=1")
                await asyncio.sleep(self.watchdog_s / 2)

    def _send(self, message: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as end:
                end.sendto(message.encode(), self._address)
        except (OSError, ValueError) as error:
            if not self._reported:
                self._reported = True
                log.warning("service_manager_unreachable", reason=str(error))
