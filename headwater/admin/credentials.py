"""The tokens and the certificate of the admin port: files that may be replaced while it is open."""

import re
import ssl
from pathlib import Path

import structlog

from headwater.admin.access import Tokens
from headwater.admin.config import AdminConfig
from headwater_core.certificates import server_context
from headwater_core.errors import UsageError
from headwater_core.followed_files import FollowedFiles

RELOAD_S = 10.0  # between two looks at the files
TOKEN_BYTES_MIN = 16
_FILE_BYTES_MAX = 1 << 20

log = structlog.get_logger()


class Credentials:
    """Raises UsageError for files that are not whole. Later such files are refused with an event, and the former stay in use."""

    def __init__(self, config: AdminConfig) -> None:
        self._config = config
        paths = (config.token_file, config.read_token_file, config.tls_certificate, config.tls_key)
        self._files = FollowedFiles([path for path in paths if path is not None], self._load)

    @property
    def tokens(self) -> Tokens:
        """What clients must show."""
        return self._files.value[0]

    @property
    def tls(self) -> ssl.SSLContext | None:
        """For the handshakes from now on; None: plain HTTP."""
        return self._files.value[1]

    def reload(self) -> None:
        """Load files that have changed."""
        try:
            if self._files.reload():
                log.info("admin_credentials_reloaded")
        except UsageError as error:
            log.error("admin_credentials_refused", reason=str(error), consequence="those that were loaded before stay in use")

    def _load(self) -> tuple[Tokens, ssl.SSLContext | None]:
        config = self._config
        tokens = Tokens(
            _token("token_file", config.token_file) if config.token_file else None,
            _token("read_token_file", config.read_token_file) if config.read_token_file else None,
        )
        if tokens.write is not None and tokens.write == tokens.read:
            raise UsageError("admin.read_token_file has the token of admin.token_file: who shall only read could have anything done")
        if not (config.tls_certificate and config.tls_key):
            return tokens, None
        context = server_context("admin", config.tls_certificate, config.tls_key)
        context.set_alpn_protocols(["http/1.1"])
        return tokens, context


def _token(name: str, path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            token = file.read(_FILE_BYTES_MAX).partition(b"\n")[0].strip()
    except OSError as error:
        raise UsageError(f"admin.{name}: cannot read {path}: {error.strerror}") from error
    if not re.fullmatch(rb"[!-~]{%d,4096}" % TOKEN_BYTES_MIN, token):
        raise UsageError(f"admin.{name}: the first line of {path} is not {TOKEN_BYTES_MIN} to 4096 visible ASCII characters")
    return token
