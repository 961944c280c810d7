"""What a gateway needs of the process that it runs in: frequent switches of threads, short collections of garbage, enough descriptors."""

import contextlib
import gc
import resource
import sys

import structlog

from headwater.gateway.config import CONNECTIONS_MOST
from hydration.cache.chunk_cache import OPEN_FILES_MAX as CACHED_FILES_MAX
from hydration.local.local_tier import OPEN_FILES_MAX as LOCAL_FILES_MAX

SWITCH_S = 0.0005  # the event loop gets the interpreter back from a thread that computes after that; the default is ten times as long
OTHER_FILES = 256  # store connections, control log, libraries, files that only a reader holds any more
FILES = CACHED_FILES_MAX + LOCAL_FILES_MAX + OTHER_FILES

log = structlog.get_logger()


def prepare_process(connections_max: int, *, sockets: int = 1) -> int:
    """Make this process fit to serve; how many connections it may accept, fewer than `connections_max` where descriptors would run out.

    connections_max  0: a third of the descriptors
    sockets          of one connection
    """
    sys.setswitchinterval(min(SWITCH_S, sys.getswitchinterval()))
    descriptors = _raise_descriptors()
    allowed = allowed_connections(connections_max or min(descriptors // 3, CONNECTIONS_MOST), descriptors, sockets)
    if allowed < connections_max:
        needed = connections_max * sockets + FILES
        log.warning(
            "connections_limited",
            connections_max=connections_max,
            allowed=allowed,
            descriptors=descriptors,
            reserved_for_files=FILES,
            needed=needed,
            reason=f"the hard limit of open files (RLIMIT_NOFILE) is {descriptors}. Raise it to {needed} at least (ulimit -Hn, systemd's "
            "LimitNOFILE, docker run --ulimit nofile), or lower gateway.connections_max",
        )
    return allowed


def settle_process() -> None:
    """Everything that a process needs for as long as it lives is there. A collection of garbage walks over all objects, and holds the
    interpreter meanwhile: a hundred thousand, of which nearly all were made by the start, take it some 50 ms. So those are left out from
    now on. May be called again, and does nothing then: what is made later may become garbage."""
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()


def allowed_connections(connections_max: int, descriptors: int, sockets: int = 1) -> int:
    """As many as leave the files their share; one at least."""
    return max(1, min(connections_max, (descriptors - FILES) // sockets))


def _raise_descriptors() -> int:
    """The soft limit, as high as it may be. Nothing in here uses select(), which allows the first 1024 only."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
