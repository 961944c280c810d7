"""The agent's own socket, in its data directory: its name, and the listener behind it. Only the agent's user can enter that directory."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headwater_core.files import disk_errors

NAME = "agent.sock"
SETTINGS_HEADER = "Headwater-Settings"  # of a command's request: what it states, JSON, a text by key
BACKLOG = 128


def listen_locally(data_dir: Path) -> socket.socket:
    """Removes the socket of a killed agent: the caller holds the data directory's lock, so no process listens on it.

    Raises what `disk_errors` makes of the operating system's errors.
    """
    with disk_errors(data_dir / NAME):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            remove_socket(data_dir)
            with socket_address(data_dir) as address:
                mask = os.umask(0o077)  # of the whole process while it binds: nobody else may connect before the chmod
                try:
                    listener.bind(address)
                finally:
                    os.umask(mask)
                os.chmod(address, 0o600)
            listener.listen(BACKLOG)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
        return listener


def socket_stamp(data_dir: Path) -> tuple[int, int] | None:
    """Which socket is there, by device and inode; None: there is none. While a socket listens, no other one has its stamp."""
    try:
        found = (data_dir / NAME).stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def remove_socket(data_dir: Path) -> None:
    with suppress(FileNotFoundError):
        (data_dir / NAME).unlink()


@contextmanager
def socket_address(data_dir: Path) -> Iterator[str]:
    """A name for the socket that fits into the 107 bytes of an address, however long the directory's own path is."""
    directory = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{NAME}"
    finally:
        os.close(directory)
