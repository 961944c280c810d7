"""The tokens and the certificate of the admin port: files that may be replaced while it is open."""

import re
import ssl
from pathlib import Path

import structlog

from headwater.admin.access import Tokens
from headwater.admin.config import AdminConfig
from headwater_core.errors import UsageError
from headwater_core.files import Fingerprint, fingerprint

RELOAD_S = 10.0  # between two looks at the files
TOKEN_BYTES_MIN = 16
_FILE_BYTES_MAX = 1 << 20

log = structlog.get_logger()


class Credentials:
    """As the files had them when they were last found whole. Raises UsageError for files that are not.

    tokens  what clients must show
    tls     for the handshakes from now on; None: plain HTTP
    """

    def __init__(self, config: AdminConfig) -> None:
        self._config = config
        self._seen = self._stamps()
        self._refused = ""  # why the files as they are now cannot be used
        self.tokens, self.tls = self._load()

    def reload(self) -> None:
        """Take up files that have changed. What is not whole is reported, and the former stays."""
        stamps = self._stamps()
        if stamps == self._seen and not self._refused:
            return
        try:
            self.tokens, self.tls = self._load()
        except UsageError as error:
            if str(error) != self._refused:
                log.error("admin_credentials_refused", reason=str(error), consequence="those that were loaded before stay in use")
            self._refused = str(error)
        else:
            self._seen, self._refused = stamps, ""  # not before: other rights on a file, which may mend it, change no stamp
            log.info("admin_credentials_reloaded")

    def _load(self) -> tuple[Tokens, ssl.SSLContext | None]:
        config = self._config
        tokens = Tokens(
            _token("token_file", config.token_file) if config.token_file else None,
            _token("read_token_file", config.read_token_file) if config.read_token_file else None,
        )
        if tokens.write is not None and tokens.write == tokens.read:
            raise UsageError("admin.read_token_file has the token of admin.token_file: who shall only read could have anything done")
        certificate, key = config.tls_certificate, config.tls_key
        return tokens, _context(certificate, key) if certificate and key else None

    def _stamps(self) -> list[Fingerprint | None]:
        files = (self._config.token_file, self._config.read_token_file, self._config.tls_certificate, self._config.tls_key)
        return [fingerprint(path) for path in files if path is not None]


def _token(name: str, path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            token = file.read(_FILE_BYTES_MAX).partition(b"\n")[0].strip()
    except OSError as error:
        raise UsageError(f"admin.{name}: cannot read {path}: {error.strerror}") from error
    if not re.fullmatch(rb"[!-~]{%d,4096}" % TOKEN_BYTES_MIN, token):
        raise UsageError(f"admin.{name}: the first line of {path} is not {TOKEN_BYTES_MIN} to 4096 visible ASCII characters")
    return token


def _context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, password="")  # one that needs a password is refused, not asked for on the terminal
    except (OSError, ValueError) as error:
        raise UsageError(f"admin: {certificate} and {key} are not a certificate and its key: {error}") from error
    return context
