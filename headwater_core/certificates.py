"""What a TLS listener shows its clients, and what it requires of them."""

import ssl
from pathlib import Path

from headwater_core.errors import UsageError


def server_context(section: str, certificate: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """TLS 1.2 and newer, as a server. Raises UsageError, which begins with `section`, for files that cannot be used.

    certificate  PEM: the server's own one, and those between it and the root
    client_ca    PEM: clients must show a certificate that one of these authorities has issued; None: they need none
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        context.load_cert_chain(certificate, key, password="")  # one that needs a password is refused, not asked for on the terminal
    except (OSError, ValueError) as error:
        raise UsageError(f"{section}: {certificate} and {key} are not a certificate and its key: {error}") from error
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(client_ca)
        except (OSError, ValueError) as error:
            raise UsageError(f"{section}: {client_ca} has no certificates of authorities for clients: {error}") from error
    return context
