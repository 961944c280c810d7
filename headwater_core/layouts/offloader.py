"""The interface between runs and objects, which every layout implements."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple, Protocol

from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.run_scan import RunScan
from headwater_core.segments.runindex import RunIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class Offloaded:
    """What an offload left in the store, confirmed; a manifest entry lists it.

    size_bytes, digest   of the whole data object
    context              what the layout itself needs, kept in the entry and handed back on every read
    """

    size_bytes: int
    digest: str
    index_bytes: int
    index_digest: str
    context: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.size_bytes <= 0 or self.index_bytes < 0:
            raise ValueError(f"{self.size_bytes} bytes, index {self.index_bytes}")


class NewRun(NamedTuple):
    """What is to be offloaded: source[scan.start_position : scan.end_position], and the names it gets."""

    key: str
    index_key: str
    source: BinaryIO
    scan: RunScan


class Offloader(Protocol):
    """Writes one run as objects and reads it back as Kafka's own bytes. Holds no state; safe to use from many threads."""

    @property
    def name(self) -> str:
        """As entries and topic settings spell it."""
        ...

    def offload(self, store: ObjectStore, runs: Sequence[NewRun]) -> list[Offloaded]:
        """Create each run's data object, then its index.

        The bytes are read again while they are sent and must have scan.digest still. A key that is taken, or a put
        without an answer, is read back: the very same bytes are this run, uploaded before. What a failure leaves behind
        is unlisted, so the caller tries again under a new key and garbage collection finds the rest.

        Raises SourceChanged when the source, or what lies under a key, is not what was scanned; UnknownOutcome when even
        the read-back gives no answer.
        """
        ...

    def read_offloaded(self, store: ObjectStore, key: str, context: dict[str, str], buffer: memoryview, start: int) -> None:
        """Fill `buffer` with the run's bytes from position `start` of the run. Raises NotFound, TruncatedData."""
        ...

    def stream_offloaded(
        self, store: ObjectStore, key: str, context: dict[str, str], buffers: Sequence[memoryview], start: int
    ) -> Generator[None, None, None]:
        """The same for buffers that follow each other in the run, with as few requests as can be. Yields as each is full."""
        ...

    def read_index(self, store: ObjectStore, index_key: str, index_bytes: int, index_digest: str) -> RunIndex:
        """The run's index. Raises NotFound, and CorruptData when it is not the one that was written."""
        ...

    def delete_offloaded(self, store: ObjectStore, key: str, index_key: str) -> None:
        """Remove both objects, the index first; silent about what is not there."""
        ...
