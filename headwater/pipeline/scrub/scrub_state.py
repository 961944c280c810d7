"""The objects that a scrub has found undamaged, so that the next one reads only new ones. A file outside the bucket."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from headwater_core import milestones
from headwater_core.errors import CorruptData, UsageError
from headwater_core.files import disk_errors, rename_synced, write_partial
from manifests.document import FORMAT, seal, unseal

MILESTONES = ("scrub.state_written", "scrub.state_renamed")


class SeenDocument(msgspec.Struct, frozen=True, kw_only=True):
    """objects: by partition ("<topic id>:<number>"), the tokens of checks that found nothing."""

    format: tuple[int, int] = FORMAT
    store: str
    objects: dict[str, list[str]]


class ScrubState:
    """The objects that were found undamaged, by partition. Kept in the file `path`, or in memory. For one process at a time."""

    def __init__(self, store_url: str, path: Path | None = None, objects: dict[str, set[str]] | None = None) -> None:
        self._store_url, self._path = store_url, path
        self._objects = objects or {}

    @classmethod
    def load(cls, path: Path, store_url: str) -> "ScrubState":
        """The state in `path`, empty when there is no file. Raises CorruptData for a damaged file, UsageError for another archive's."""
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            return cls(store_url, path)
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from error
        try:
            document = unseal(raw, SeenDocument, str(path))
        except CorruptData as error:
            raise CorruptData(str(path), 0, f"{error.reason}; remove the file to examine everything again") from error
        if document.store != store_url:
            raise UsageError(f"{path} is about {document.store}, not {store_url}")
        return cls(store_url, path, {partition: set(tokens) for partition, tokens in document.objects.items()})

    def has(self, partition: str, token: str) -> bool:
        return token in self._objects.get(partition, ())

    def add(self, partition: str, token: str) -> None:
        self._objects.setdefault(partition, set()).add(token)

    def discard(self, partition: str, token: str) -> None:
        self._objects.get(partition, set()).discard(token)

    def keep(self, partition: str, tokens: Iterable[str]) -> None:
        """Forget all others: they are no longer listed."""
        if partition in self._objects:
            self._objects[partition] &= set(tokens)

    def save(self) -> None:
        """Save atomically. Raises DiskFull and UsageError; then the file is as before."""
        if self._path is None:
            return
        objects = {partition: sorted(tokens) for partition, tokens in sorted(self._objects.items()) if tokens}
        with disk_errors(self._path, UsageError):
            partial = write_partial(self._path, seal(SeenDocument(store=self._store_url, objects=objects)))
            milestones.reached("scrub.state_written")
            rename_synced(partial, self._path)
            milestones.reached("scrub.state_renamed")
