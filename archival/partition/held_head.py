"""The head of one partition as its archiver last saw it in the bucket."""

from headwater_core.errors import CorruptData
from headwater_core.partition import PartitionId
from manifests import chunk_keys, keys
from manifests.head import Head
from manifests.namesakes import Namesakes
from manifests.repository import CommitLost, ManifestRepository, Versioned


class HeldHead:
    """A manifest is never deleted, so one that was seen and is gone is CorruptData: to begin again would hide all that it listed."""

    def __init__(self, partition: PartitionId, repository: ManifestRepository) -> None:
        self._partition, self._repository = partition, repository
        self._held: Versioned | None = None
        self._is_known = False  # is _held what we last saw in the bucket?

    @property
    def head(self) -> Head | None:
        """None before it is loaded, and while there is none."""
        return self._held.head if self._held else None

    @property
    def size_bytes(self) -> int:
        return self._held.size_bytes if self._held else 0

    def load(self) -> None:
        """Read it, unless what is held is what the bucket had last. Raises what ManifestRepository.load raises."""
        if not self._is_known:
            self._held = self._repository.load(self._partition)
            self._is_known = True

    def doubt(self) -> None:
        """What is held may not be what the bucket has: `load` reads it again."""
        self._is_known = False

    def reload(self) -> bool:
        """Read it again; is it another one now? Raises CorruptData when it is gone, and what ManifestRepository.load raises."""
        before, self._held = self._held, self._repository.load(self._partition)
        if before and self._held is None:
            raise self._is_gone(before.head.version)
        return self._held != before

    def reload_lost(self, version: int) -> Head:
        """Read a head that must be there, since `version` was committed, or there are objects (0): another agent has made it.

        Raises CorruptData when it is not, and what ManifestRepository.load raises.
        """
        self._held = self._repository.load(self._partition)
        if self._held is None:
            raise self._is_gone(version)
        return self._held.head

    def has_objects(self) -> bool:
        """Are there objects of the partition? They prove that there was a manifest: the first claim comes before the first upload."""
        store, partition = self._repository.store, self._partition
        if any(next(iter(store.list(each)), None) is not None for each in _data_prefixes(partition)):
            return True
        has_chunks = next(chunk_keys.stored_chunks(store, partition.topic_partition), None) is not None
        return has_chunks and not Namesakes(self._repository, partition).highest_fence()  # else they may be of an earlier incarnation

    def commit(self, after: Head) -> Head:
        """Raises what ManifestRepository.commit raises; after CommitLost, the head that came first is held."""
        try:
            self._held = self._repository.commit(self._held, after)
        except CommitLost as error:
            if self._held and error.current is None:
                raise self._is_gone(self._held.head.version) from error
            self._held = error.current
            raise
        return self._held.head

    def _is_gone(self, version: int) -> CorruptData:
        below = " and ".join(_data_prefixes(self._partition))
        was = f"version {version} was committed" if version else f"it listed the objects below {below}"
        return CorruptData(
            keys.head(self._partition),
            0,
            f"{was} and is no longer in {self._repository.store.url}: restore it, or mount the bucket again; to begin again without what "
            "it listed, remove the partition's objects and the data directory's control folder",
        )


def _data_prefixes(partition: PartitionId) -> tuple[str, str]:
    """All that hold its data objects."""
    return keys.data_prefix(partition), keys.stream_prefix(partition)
