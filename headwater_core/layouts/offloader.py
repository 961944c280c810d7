"""The interface between runs and objects, which every layout implements.

What every layout does is headwater_core.layouts.testing, a contract to run over each.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple, Protocol

from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import PartitionId
from headwater_core.segments.run_scan import RunScan
from headwater_core.segments.runindex import RunIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class Offloaded:
    """What an offload left in the store, confirmed; a manifest entry lists it, and is handed back on every read: see StoredRun.

    size_bytes, digest   of the whole data object
    run_bytes, run_digest  of the run that it holds; for a layout that stores the run itself they are the object's
    index_bytes, index_digest  of the run's index as runindex.encode_index writes it, wherever the layout keeps it
    context              what else the layout itself needs
    """

    size_bytes: int
    digest: str
    run_bytes: int
    run_digest: str
    index_bytes: int
    index_digest: str
    context: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.size_bytes <= 0 or self.run_bytes <= 0 or self.index_bytes < 0:
            raise ValueError(f"{self.size_bytes} bytes, a run of {self.run_bytes}, index {self.index_bytes}")

    @property
    def is_wrapped(self) -> bool:
        """The object is not the run itself."""
        return (self.size_bytes, self.digest) != (self.run_bytes, self.run_digest)


class StoredRun(Protocol):
    """What a manifest entry says of one offloaded run: its names, and what `offload` returned."""

    @property
    def layout(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def run_bytes(self) -> int: ...
    @property
    def index_key(self) -> str: ...
    @property
    def index_bytes(self) -> int: ...
    @property
    def index_digest(self) -> str: ...
    @property
    def context(self) -> Mapping[str, str]: ...


class NewRun(NamedTuple):
    """What is to be offloaded: source[scan.start_position : scan.end_position], and the names it gets.

    base_offset, last_offset  as the manifest will list it: runs abut, whatever compaction has left at their ends
    index_key                 for a layout that keeps the index in an object of its own; "" for others
    """

    partition: PartitionId
    base_offset: int
    last_offset: int
    key: str
    index_key: str
    source: BinaryIO
    scan: RunScan


class RunReader(Protocol):
    """One offloaded run. Positions are the run's, whatever lies between its bytes in the store. For many threads."""

    def read_into(self, buffer: memoryview, start: int) -> None:
        """Fill `buffer` with the run's bytes from position `start` on. Raises NotFound, TruncatedData, CorruptData."""
        ...

    def stream_into(self, buffers: Sequence[memoryview], start: int) -> Generator[None, None, None]:
        """The same for buffers that follow each other in the run, with as few requests as can be. Yields as each is full."""
        ...

    def read_index(self) -> RunIndex:
        """The run's index. Raises NotFound, and CorruptData when it is not the one that was written."""
        ...

    def check_rest(self) -> None:
        """Examine what no other method reads. Raises NotFound, and CorruptData when it is not what was written."""
        ...


class Offloader(Protocol):
    """Writes runs as objects and reads them back as Kafka's own bytes. Safe to use from many threads."""

    @property
    def name(self) -> str:
        """As entries and topic settings spell it."""
        ...

    @property
    def preserves_batches(self) -> bool:
        """What is read back is the very bytes that were offloaded; else the same records at the same offsets."""
        ...

    def offload(self, store: ObjectStore, runs: Sequence[NewRun], extra_metadata: Mapping[str, str]) -> list[Offloaded]:
        """Create the objects of each run, what readers start from last.

        The bytes are read again while they are sent and must have scan.digest still. A key that is taken, or a put
        without an answer, is read back: the very same bytes are this run, uploaded before. What a failure leaves behind
        is unlisted, so the caller tries again under a new key and garbage collection finds the rest.

        extra_metadata  for people who inspect the store: user metadata of the data objects

        Raises SourceChanged when the source, or what lies under a key, is not what was scanned; UnknownOutcome when even
        the read-back gives no answer.
        """
        ...

    def read_offloaded(self, store: ObjectStore, run: StoredRun) -> RunReader:
        """Makes no request. Raises CorruptData, UnsupportedFormat for a context that this version did not write."""
        ...

    def data_objects(self, run: StoredRun) -> Sequence[tuple[str, int]]:
        """The keys of the objects that hold the run, in its order, with their lengths: one, or what it is cut into. Makes no request;
        raises what `read_offloaded` does."""
        ...

    def delete_offloaded(self, store: ObjectStore, run: StoredRun) -> None:
        """Remove all objects of the run, what readers start from first; silent about what is not there."""
        ...
