"""What an operator may set about drills."""

import re
from dataclasses import dataclass
from pathlib import Path

from headwater.drill.cron_schedule import CronSchedule
from headwater_core.errors import UsageError
from headwater_core.partition import parse_incarnation

SCRATCH_BYTES_MIN = 1 << 20
REPORTS_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillConfig:
    """
    schedule       when the agent does one by itself: five fields as in crontab, in UTC, such as "0 3 * * sun"; "" never
    topics         of which, NAME, NAME@TOPIC_ID or a pattern; none: all
    sample         how much of the archived bytes is restored and compared, such as "5%"
    cluster        of the whole cluster, with its metadata; then `topics` must be empty
    directory      where the scratch directory is made; None: drills/ in the data directory
    scratch_bytes  most that one restores at a time, so also most that it compares
    kafka_home     an unpacked Kafka: with it, and Java, a broker is started on what was restored and read as well
    kept_reports   so many reports are kept
    """

    schedule: str = ""
    topics: tuple[str, ...] = ()
    sample: str = "100%"
    cluster: bool = False
    directory: Path | None = None
    scratch_bytes: int = 20 << 30
    kafka_home: Path | None = None
    kept_reports: int = 100

    def __post_init__(self) -> None:
        if self.schedule:
            try:
                CronSchedule.parse(self.schedule)
            except UsageError as error:
                raise UsageError(f"drill.schedule: {error}") from None
        for topic in self.topics:
            check_selected(topic)
        if self.cluster and self.topics:
            raise UsageError("drill: topics are named, and cluster = true means all")
        try:
            parse_share(self.sample)
        except UsageError as error:
            raise UsageError(f"drill.sample: {error}") from None
        if self.scratch_bytes < SCRATCH_BYTES_MIN:
            raise UsageError(f"drill.scratch_bytes {self.scratch_bytes}: at least 1MiB")
        if not 1 <= self.kept_reports <= REPORTS_MAX:
            raise UsageError(f"drill.kept_reports {self.kept_reports} is not from 1 to {REPORTS_MAX}")


def check_selected(topic: str) -> None:
    """Raises UsageError for what is no NAME, NAME@TOPIC_ID or pattern."""
    from manifests.setting_list import check_pattern
    from recovery import is_pattern

    if is_pattern(topic):
        check_pattern(topic)
    else:
        parse_incarnation(topic)


def parse_share(text: str) -> float:
    """From 0, exclusive, to 1, of a percentage such as "5%". Raises UsageError."""
    found = re.fullmatch(r"\s*([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*%\s*", text)
    if not found or not 0 < float(found[1]) <= 100:
        raise UsageError(f"not a share such as 5%: {text[:40]!r}")
    return float(found[1]) / 100
