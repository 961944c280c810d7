"""Files of a recovered directory: each appears under its name whole and durable, or not at all."""

from pathlib import Path

from headwater_core.files import disk_errors, replace_file

SECRET_MODE = 0o600  # of files with users' credentials


def read_if_there(path: Path) -> bytes | None:
    """The file's content; None when it is not there. Raises what `disk_errors` makes of errors."""
    with disk_errors(path):
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None


def publish(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Write a small file; one that says the same already is left alone. mode: of a new one, less the umask"""
    if read_if_there(path) != content:
        replace_file(path, content, mode=mode)
