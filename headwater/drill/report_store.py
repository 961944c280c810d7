"""The reports of drills, kept in a directory, and what the last one said: it outlives the agent."""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import structlog

from headwater.drill.drill_report import DrillOutcome, DrillReport, encode_report
from headwater_core.errors import HeadwaterError
from headwater_core.files import disk_errors, replace_file
from manifests.document import FORMAT, prepared, seal, unseal

DIRECTORY = "drills"  # in the data directory
LAST = "last.json"
_NAME = re.compile(r"report-([A-Za-z0-9][A-Za-z0-9._-]{7,63})\.(json|txt)")

log = structlog.get_logger()


@prepared
class LastDrill(msgspec.Struct, frozen=True, kw_only=True):
    """
    ended_ms    of the last one; passed_ms: of the last one that passed, 0 when none has
    partitions, records, size_bytes  that it compared; findings: how many there were
    report      its JSON, a file's name
    error       why it was not carried out
    """

    format: tuple[int, int] = FORMAT
    id: str
    outcome: DrillOutcome
    ended_ms: int
    passed_ms: int = 0
    partitions: int = 0
    records: int = 0
    size_bytes: int = 0
    findings: int = 0
    report: str
    error: str = ""


def report_name(report: DrillReport) -> str:
    """Of its JSON."""
    return f"report-{report.id}.json"


def last_of(report: DrillReport, before: LastDrill | None) -> LastDrill:
    """What is remembered of a report, after what was."""
    return LastDrill(
        id=report.id,
        outcome=report.outcome,
        ended_ms=report.ended_ms,
        passed_ms=report.ended_ms if report.outcome is DrillOutcome.PASSED else before.passed_ms if before else 0,
        partitions=report.compared_partitions,
        records=report.compared.records,
        size_bytes=report.compared.size_bytes,
        findings=report.finding_count,
        report=report_name(report),
        error=report.error[:500],
    )


class ReportStore:
    """The reports in a data directory, the newest `kept` of them."""

    def __init__(self, data_dir: Path, kept: int) -> None:
        self.directory, self._kept = data_dir / DIRECTORY, kept

    def add(self, report: DrillReport) -> Path:
        """Write a report as JSON, and then what `last` says. Returns the JSON's path. Raises as replace_file does."""
        with self._locked():
            path = self.directory / report_name(report)
            replace_file(path, encode_report(report))
            replace_file(self.directory / LAST, seal(last_of(report, self.last())))
            self._expire(report.id)
        return path

    def add_text(self, report: DrillReport, text: str) -> None:
        """Write the text beside the JSON. Raises as replace_file does."""
        replace_file((self.directory / report_name(report)).with_suffix(".txt"), text.encode("utf-8", "backslashreplace"))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Two drills in different scratch directories end at any time; this is for the moment that a report is written in."""
        with disk_errors(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with disk_errors(self.directory):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def last(self) -> LastDrill | None:
        """None when there was none; damage of the file is unknown knowledge, and logged."""
        path = self.directory / LAST
        try:
            return unseal(path.read_bytes(), LastDrill, str(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, HeadwaterError) as error:
            log.warning("last_drill_unknown", reason=str(error))
            return None

    def stamp(self) -> tuple[int, int] | None:
        """Another one means that `last` may say something else; None: there is nothing to read."""
        with suppress(OSError):
            found = os.stat(self.directory / LAST)
            return found.st_mtime_ns, found.st_ino
        return None

    def _expire(self, newest: str) -> None:
        """Those that were completed first go first. Neither an id nor a file's time says that where the clock was set back; so a file's
        time is made to: the newest has the greatest. What another hand has copied counts by the time it has."""
        with suppress(OSError):
            times_ns: dict[str, int] = {}
            for path in self.directory.iterdir():
                if found := _NAME.fullmatch(path.name):
                    times_ns[found[1]] = max(times_ns.get(found[1], 0), path.stat().st_mtime_ns)
            others = [time_ns for each, time_ns in times_ns.items() if each != newest]
            if others and times_ns[newest] <= max(others):
                later_ns = max(others) + 1000
                os.utime(self.directory / f"report-{newest}.json", ns=(later_ns, later_ns))
            ids = sorted(times_ns.keys() - {newest}, key=lambda each: (times_ns[each], each))
            for old in ids[: max(0, len(ids) + 1 - self._kept)]:
                for suffix in (".json", ".txt"):
                    (self.directory / f"report-{old}{suffix}").unlink(missing_ok=True)
