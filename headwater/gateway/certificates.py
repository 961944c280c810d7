"""The certificate of the Kafka port, and the authorities for its clients: files that may be replaced while it is open."""

import asyncio
import ssl
from pathlib import Path

import structlog

from headwater_core.certificates import server_context
from headwater_core.errors import UsageError
from headwater_core.followed_files import FollowedFiles

RELOAD_S = 10.0  # between two looks at the files

log = structlog.get_logger()


class PortCertificate:
    """Raises UsageError for files that cannot be used. Later they are refused with an event, and the former stay in use.

    client_ca  None: clients need no certificate
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        paths = [path for path in (certificate, key, client_ca) if path is not None]
        self._files = FollowedFiles(paths, lambda: server_context("gateway", certificate, key, client_ca))

    @property
    def context(self) -> ssl.SSLContext:
        """For the handshakes from now on."""
        return self._files.value

    def reload(self) -> None:
        """Load files that have changed."""
        try:
            if self._files.reload():
                log.info("gateway_certificate_reloaded")
        except UsageError as error:
            log.error("gateway_certificate_refused", reason=str(error), consequence="the one that was loaded before stays in use")

    async def follow(self) -> None:
        """Reload now and then, until it is cancelled."""
        while True:
            await asyncio.sleep(RELOAD_S)
            try:
                self.reload()
            except Exception:  # a defect must not end the port
                log.exception("gateway_certificate_not_read")
