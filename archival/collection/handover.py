"""What an agent that ended in good order had looked at, for the next one on its data directory.

Whoever opens the data directory for archiving takes it, before the first upload. A process that is killed therefore leaves none, and the
next one looks at each partition: an upload that was cut short leaves no other trace.
"""

from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import msgspec

from archival.config import ArchivalConfig
from headwater_core.control.state import PartitionState
from headwater_core.errors import UsageError
from headwater_core.files import disk_errors, replace_file, sync_path
from headwater_core.partition import PartitionId

_FORMAT = 1


class CollectionLook(msgspec.Struct, frozen=True):
    """At which commit of its manifest a partition was looked, by which settings (their digest), and when something of it may leave
    though nothing is committed (ms; None: never). commit_id: empty in a document of before."""

    version: int
    settings: str
    again_ms: int | None
    commit_id: str = ""

    def is_at(self, known: PartitionState) -> bool:
        """Return whether it was at the manifest that the control log knows."""
        return self.version == known.manifest_version and not known.conflicts(self.version, self.commit_id)


@lru_cache(maxsize=256)
def settings_digest(settings: ArchivalConfig) -> str:
    return sha256(repr(settings).encode()).hexdigest()[:32]


class _Row(msgspec.Struct, array_like=True):
    cluster_id: str
    topic_id: str
    partition: int
    topic: str
    look: CollectionLook


class _Document(msgspec.Struct):
    format: int
    looks: list[_Row]


class Handover:
    """One process at a time, which holds the lock of the data directory."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def take(self) -> dict[PartitionId, CollectionLook]:
        """It is gone then, whatever happens to this process. What is damaged or not there is empty; so is what cannot be removed."""
        try:
            content = self._path.read_bytes()
            try:
                self._path.unlink()
            except OSError:
                self._path.write_bytes(b"")  # nor may the process after this one believe it
                raise
            sync_path(self._path.parent)
            document = msgspec.json.decode(content, type=_Document)
            if document.format != _FORMAT:
                return {}
            return {PartitionId(each.cluster_id, each.topic_id, each.partition, each.topic): each.look for each in document.looks}
        except (OSError, msgspec.MsgspecError, RecursionError, UsageError):
            return {}

    def leave(self, looks: Mapping[PartitionId, CollectionLook]) -> None:
        """Raises DiskFull, Unauthorised and TransientError; then the next process looks at each partition."""
        rows = [_Row(each.cluster_id, each.topic_id, each.partition, each.topic, look) for each, look in looks.items()]
        with disk_errors(self._path):
            replace_file(self._path, msgspec.json.encode(_Document(_FORMAT, rows)))
