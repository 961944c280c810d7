"""What the journal's compaction leaves: the state, and the last two entries it reflects, which the library needs.

The file is MAGIC, the CRC-32 (zlib's, 4 bytes, big-endian) of the rest, and a MessagePack map.
"""

import zlib
from pathlib import Path

import msgspec

from headwater_core.control.journal import Entry
from headwater_core.control.state import ControlState, decode_state, encode_state
from headwater_core.errors import CorruptData
from headwater_core.files import replace_file

MAGIC = b"HWSNAP\x00\x01"
SNAPSHOT_BYTES_MAX = 1 << 30


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """`last` and the one `before` it are the newest entries in `state`, a whole encoded ControlState."""

    before: Entry
    last: Entry
    state: bytes


def write_snapshot(path: Path, state: ControlState, before: Entry, last: Entry) -> None:
    """Replace the snapshot at `path`. Raises DiskFull and TransientError."""
    body = msgspec.msgpack.encode(Snapshot(before=before, last=last, state=encode_state(state)))
    replace_file(path, MAGIC + zlib.crc32(body).to_bytes(4, "big") + body)


def read_snapshot(path: Path) -> tuple[ControlState, Entry, Entry]:
    """(state, entry before the last, last entry). Raises CorruptData."""
    with open(path, "rb") as file:
        content = file.read(SNAPSHOT_BYTES_MAX + 1)
    head, body = content[: len(MAGIC) + 4], memoryview(content)[len(MAGIC) + 4 :]
    if len(content) > SNAPSHOT_BYTES_MAX or head != MAGIC + zlib.crc32(body).to_bytes(4, "big"):
        raise CorruptData(str(path), 0, "not a control snapshot of this version, or its checksum differs")
    try:
        snapshot = msgspec.msgpack.decode(body, type=Snapshot)
    except msgspec.MsgspecError as error:
        raise CorruptData(str(path), len(head), str(error)) from error
    return decode_state(snapshot.state), snapshot.before, snapshot.last
