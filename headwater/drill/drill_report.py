"""What a drill says, as a document: what was not compared stands there as plainly as what was."""

from collections.abc import Sequence
from enum import Enum

import msgspec

from manifests.document import prepared, seal, unseal

REPORT_FORMAT = (1, 4)
FINDINGS_MAX = 1000  # that a report lists; it counts all


class Amount(msgspec.Struct, frozen=True, kw_only=True):
    """What was compared. records: without markers."""

    runs: int = 0
    batches: int = 0
    records: int = 0
    size_bytes: int = 0

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(
            runs=self.runs + other.runs,
            batches=self.batches + other.batches,
            records=self.records + other.records,
            size_bytes=self.size_bytes + other.size_bytes,
        )


NOTHING = Amount()


class DrillOutcome(Enum):
    """
    PASSED      all that was drawn came back as it was archived, and nothing else is known to be wrong
    INCOMPLETE  the same, but a recovery leaves something out, such as partitions that were never archived, or of which that is lost, or
                brings a transaction back in part; or something was to be compared and was not: by a read path that was requested, or
                because the archive has replaced it
    FAILED      something is damaged, missing or differs
    NOTHING     nothing was compared, so nothing is proven
    UNFINISHED  the drill itself, or its comparison by a broker of `drill.kafka_home`, could not be carried out: `error` says why
    """

    PASSED = "passed"
    INCOMPLETE = "incomplete"
    FAILED = "failed"
    NOTHING = "nothing compared"
    UNFINISHED = "unfinished"


class DrillFinding(msgspec.Struct, frozen=True, kw_only=True):
    """
    kind    `damaged` in the bucket, `missing` from it, `not recovered` by the plan, `differs` after it was restored, `live differs` from
            the live cluster
    where   the read path, or "archive"
    offset  from where on; null: of the whole
    """

    kind: str
    topic: str
    partition: int | None = None
    offset: int | None = None
    where: str = "archive"
    text: str

    def __str__(self) -> str:
        place = self.topic if self.partition is None else f"{self.topic}:{self.partition}"
        return f"{place}: {self.kind}: {self.text}"


class ComparedWindow(msgspec.Struct, frozen=True, kw_only=True):
    """One window: the runs from base_offset to last_offset, both inclusive, as they were restored.

    head_version  of the head that they were planned from
    start_offset, end_offset  of the partition's archive, the end exclusive
    by            what was compared, by read path; fewer than `archived` only where something differs, the archive has replaced it
                  meanwhile, or the live log is shorter or was compacted
    live          why less of the live log was compared, or none of it; "" where all was
    """

    topic: str
    topic_id: str
    partition: int
    head_version: int
    start_offset: int
    end_offset: int
    base_offset: int
    last_offset: int
    archived: Amount
    by: dict[str, Amount]
    live: str = ""


class NotCompared(msgspec.Struct, frozen=True, kw_only=True):
    """Of one topic, for one reason. numbers: of its partitions, as in "0-9,12" """

    topic: str
    partitions: int
    numbers: str
    amount: Amount
    why: str


class PathSum(msgspec.Struct, frozen=True, kw_only=True):
    """One read path. why: it was not used, or not for everything; "" else"""

    name: str
    amount: Amount = NOTHING
    elapsed_s: float = 0.0
    why: str = ""


class MeasuredTime(msgspec.Struct, frozen=True, kw_only=True):
    """How long it took, of the sample.

    planned_s      to read what there is and plan
    restored_s     then, until it lay in a directory, verified
    first_record_s then, until the first record was read back
    ready_s        all of these together: the RTO seen
    bytes_per_s    of restoring
    everything_s   what the whole selection takes at that pace: an estimate; null where nothing was restored
    """

    planned_s: float = 0.0
    restored_s: float = 0.0
    first_record_s: float | None = None
    ready_s: float | None = None
    bytes_per_s: float | None = None
    everything_s: float | None = None


class Lag(msgspec.Struct, frozen=True, kw_only=True):
    """What a partition would have lost. behind_s: for how long the oldest of it has waited, by its timestamp; null: not known"""

    topic: str
    partition: int
    archived_end: int
    live_end: int
    behind_s: float | None = None

    @property
    def records(self) -> int:
        """Offsets, more exactly."""
        return max(0, self.live_end - self.archived_end)


class MeasuredPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The RPO seen, at the time of the drill.

    source     "live cluster", or "archive alone": then only the newest record's timestamp is known
    partitions how many were measured
    behind     how many of them the archive is behind; records: by how many offsets together
    worst_s    the longest wait of a record that is not archived, of those in `worst`; null: not known; 0: there is none
    worst      the partitions that are furthest behind
    unmeasured all the other partitions of what was selected, and why; amount: what is archived of them
    newest_record_ms  the greatest timestamp in the archive of what was selected; null: it has no records of users
    """

    source: str
    partitions: int = 0
    behind: int = 0
    records: int = 0
    worst_s: float | None = None
    worst: tuple[Lag, ...] = ()
    newest_record_ms: int | None = None
    unmeasured: tuple[NotCompared, ...] = ()
    why: str = ""


class DrillRequest(msgspec.Struct, frozen=True, kw_only=True):
    """
    topics   NAME, NAME@TOPIC_ID or a pattern; null: all
    share    of the bytes
    seed     of the sample: the same archive and seed draw the same windows
    scratch_bytes  most that may be restored
    live     true: the comparison with the live cluster was requested; false: it was not wanted; null: where one is configured and answers
    by       `command`, or `schedule`
    """

    topics: tuple[str, ...] | None
    cluster: bool = False
    share: float = 1.0
    seed: int = 0
    scratch_bytes: int = 20 << 30
    live: bool | None = None
    by: str = "command"


@prepared
class DrillReport(msgspec.Struct, frozen=True, kw_only=True):
    """
    headwater    the version of the program
    host         where it was done
    store        URL of the bucket; cluster_id: whose archive it is
    recovery_id  of the plan
    share        of the bytes, that was drawn in the end
    selected     all that was selected and can be recovered by the manifests: each of these objects was seen to be there, in its length
    compared     of it, what was restored, read back and compared; skipped: the rest
    findings     the first ones; finding_count: all
    left_out     what the plan leaves out, in words; notes: what else it says
    torn         the transactions of which a recovery brings a part back, in words
    unmet        what was to be compared and was not, in words
    metadata     that a broker begins with: how many topics, and of a whole cluster users, ACLs, quotas, tokens, settings of all but topics
                 and feature levels, were compared
    unchecked    what else a snapshot of the metadata holds, or may hold, and what else a broker could have answered, in words
    answers      of a broker that was started: how many committed offsets, start offsets of share groups, transactional ids and ends of logs
                 were checked
    error        why the drill was not carried out to its end
    scratch      where the restored log lies, where it was kept
    """

    format: tuple[int, int] = REPORT_FORMAT
    id: str
    outcome: DrillOutcome
    headwater: str
    host: str
    store: str
    cluster_id: str = ""
    recovery_id: str = ""
    started_ms: int
    ended_ms: int
    request: DrillRequest
    share: float = 0.0
    topics: int = 0
    partitions: int = 0
    selected: Amount = NOTHING
    compared: Amount = NOTHING
    compared_partitions: int = 0
    paths: tuple[PathSum, ...] = ()
    windows: tuple[ComparedWindow, ...] = ()
    skipped: tuple[NotCompared, ...] = ()
    findings: tuple[DrillFinding, ...] = ()
    finding_count: int = 0
    left_out: tuple[str, ...] = ()
    torn: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unmet: tuple[str, ...] = ()
    metadata: dict[str, int] = {}
    unchecked: tuple[str, ...] = ()
    answers: dict[str, int] = {}
    rto: MeasuredTime = MeasuredTime()
    rpo: MeasuredPoint = MeasuredPoint(source="archive alone")
    error: str = ""
    scratch: str = ""


def encode_report(report: DrillReport) -> bytes:
    """As JSON, with a digest: a change shows."""
    return seal(report)


def decode_report(raw: bytes, where: str) -> DrillReport:
    """Raises CorruptData, UnsupportedFormat."""
    return unseal(raw, DrillReport, where)


def numbers_text(numbers: Sequence[int]) -> str:
    """Sorted numbers, as in "0-9,12"."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1][1:] = [number]
        else:
            ranges.append([number])
    return ",".join("-".join(map(str, each)) for each in ranges)
