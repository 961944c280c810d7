"""What an operator may decide about the admin port."""

from dataclasses import dataclass
from pathlib import Path

from headwater.gateway.config import is_loopback, split_address
from headwater_core.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminConfig:
    """The HTTP port for operators and their tools. It can be reached from this machine alone unless `listen` says otherwise. The socket in
    the data directory answers the same, without any of this.

    listen             port 0 takes a free one; "" opens none
    hosts              names, beside localhost and addresses, by which clients may call it
    token_file         its first line is what clients send as bearer token to read and to have anything done; it, or the next one,
                       is needed where other machines can connect
    read_token_file    the same for a token that reads alone, as for who scrapes metrics
    tls_certificate    a file with the chain, PEM; with it the port speaks HTTPS alone
    tls_key            a file with its key, PEM
    partition_metrics  metrics of each partition too, not of topics alone
    """

    listen: str = "127.0.0.1:9293"
    hosts: tuple[str, ...] = ()
    token_file: Path | None = None
    read_token_file: Path | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    partition_metrics: bool = False

    def __post_init__(self) -> None:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise UsageError("admin: tls_certificate and tls_key come together")
        is_open = self.token_file is None and self.read_token_file is None
        if self.listen and is_open and not is_loopback(split_address(self.listen)[0]):
            raise UsageError(
                f"admin.listen {self.listen!r} can be reached from other machines: set admin.token_file, or admin.read_token_file"
            )
