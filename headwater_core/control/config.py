"""How the control log is set up."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlConfig:
    """
    listen    "host:port" of this node; bound only when there are peers. Port 0 is right for a lone node
    peers     "host:port" of the others; empty for a lone node, which opens no port at all
    password  shared secret between peers, needed as soon as one of them is not on this machine
    """

    listen: str = "127.0.0.1:9291"
    peers: tuple[str, ...] = ()
    password: str | None = field(default=None, repr=False)
