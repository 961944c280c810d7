"""Every error Headwater raises on purpose, by what the caller can do about it.

Foreign errors (botocore's, lmdb's, the operating system's) are translated in the one module that touches that library.
Each class carries the exit code that the command line ends with unless a caller on the way gives another.
"""

from typing import ClassVar


class HeadwaterError(Exception):
    """Base of all of them. The message says what happened and, where there is one, what to do."""

    exit_code: ClassVar[int] = 1


class UsageError(HeadwaterError):
    """The request itself is wrong: an option, a configuration key, a name. Nothing was done."""

    exit_code = 2


class WrongStore(UsageError):
    """The data directory belongs to another store. Nothing was written to either."""


class StoreGone(UsageError):
    """The store was there and is not, or is empty now: a disk that is not mounted, most likely. Nothing was written."""


class TransientError(HeadwaterError):
    """The same call may succeed later: throttled, timed out, disconnected."""

    exit_code = 5


class UnknownOutcome(TransientError):
    """A write got no answer: it may have happened, may happen yet, or never. Read back before the next step."""


class NotFound(HeadwaterError):
    """A definite absence, said by the authority itself; never concluded from an error or a time-out."""

    exit_code = 6


class LogNotFound(NotFound):
    """No log directory has the partition: its topic was deleted, or it was assigned to other brokers."""


class AlreadyExists(HeadwaterError):
    """A create-only put found its key taken. Read back: a retried request may have refused its own success."""


class Conflict(HeadwaterError):
    """A compare-and-swap was refused: the document has another tag, or is gone. Read back."""

    exit_code = 5


class Fenced(HeadwaterError):
    """A newer claim owns this partition. Stop writing at once."""

    exit_code = 7


class Locked(HeadwaterError):
    """Another process holds the data directory."""

    exit_code = 7


class ForeignOwner(HeadwaterError):
    """The bucket, head or directory belongs to another cluster."""

    exit_code = 7


class Unauthorised(HeadwaterError):
    """Credentials are missing, wrong, expired or not allowed to do this. Not an absence."""

    exit_code = 8


class DiskFull(HeadwaterError):
    """No space for state, cache or a recovered file. Nothing was lost; make room and run again."""

    exit_code = 5


class DataDirFull(DiskFull):
    """No space in the data directory."""


class CorruptData(HeadwaterError):
    """Bytes disagree with their checksum, length or manifest. Keep them aside; retrying cannot help."""

    exit_code = 4

    def __init__(self, where: str, position: int, reason: str) -> None:
        super().__init__(f"{where}, byte {position}: {reason}")
        self.where, self.position, self.reason = where, position, reason


class TruncatedData(CorruptData):
    """The bytes end before the structure they began does, as the tail of an open segment may."""


class UnsupportedFormat(HeadwaterError):
    """A document or object of a format version, layout or codec this version does not know. Upgrade; nothing is touched."""


class NeedsUpgrade(UnsupportedFormat):
    """A document was last written by a newer version, in a format whose new fields this one would drop. It is read, and left alone."""


class SuspectedGap(HeadwaterError):
    """A log lacks offsets it should hold and nothing proves compaction. Archiving stops here and nothing is released."""


class NoEpochHistory(HeadwaterError):
    """A log has records, and nothing says which leadership wrote them. Nothing of it is archived."""

    exit_code = 3


class UnfinishedSwap(HeadwaterError):
    """A compaction stopped in the middle of its renames in a log that no broker works on any more. Nothing was done."""


class UnrelatedLog(HeadwaterError):
    """A log contradicts its archive and shares no leader epoch with it: a replaced disk, most likely. Nothing was done."""

    def __init__(self, message: str, begins_in: int) -> None:
        super().__init__(message)
        self.begins_in = begins_in  # the log's oldest leader epoch


class NeedsReplacement(HeadwaterError):
    """Compaction has gone past the archive for too long: deletions of archived keys may be gone from the log. Nothing was done."""


class DeletionRefused(HeadwaterError):
    """A broker does not delete what is archived: its topic's policy, or what we may do, does not allow that. Nothing was deleted."""


class SourceChanged(TransientError):
    """A local file was replaced, cut or removed while it was read. Plan again."""


class UploadStopped(TransientError):
    """What an upload in flight was for is gone: its topic, its claim, the wish to archive it, or the agent. Nothing was created."""


class PlaceTaken(TransientError):
    """Under the fence that is held, each name that an upload could have is something else's. Another fence gives it a new one."""


class ManifestChanged(TransientError):
    """A page of a manifest is gone, and the head as it is now refers to it no more. Read the head again."""


class Superseded(HeadwaterError):
    """What was read earlier is no longer what the archive holds: a dead branch, or a topic that was created again. Read again."""


class OffsetOutOfRange(HeadwaterError):
    """A known manifest says that this offset is below the start or above the end."""

    def __init__(self, offset: int, start: int, end: int) -> None:
        super().__init__(f"offset {offset} is outside [{start}, {end})")
        self.offset, self.start, self.end = offset, start, end


class DataLoss(HeadwaterError):
    """Requested offsets are not in the archive: dropped by retention, a gap, or not archived yet."""


class VerificationFailed(HeadwaterError):
    """What was checked does not agree with the archive's own record."""

    exit_code = 4


class Partial(HeadwaterError):
    """Some of the work is done and the rest is not; running again continues."""

    exit_code = 3


class NothingExamined(HeadwaterError):
    """A check that looked at nothing proves nothing."""

    exit_code = 10


ENVIRONMENT_ERRORS = (TransientError, Unauthorised, UsageError, DiskFull)
"""Trouble of a store, a broker, a disk or the configuration: it says nothing of what is stored, and is never reported as damage."""
