"""What scrubs have found, remembered in the data directory: a restart, or a year, must not end an alert about damage."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import structlog

from headwater_core.errors import HeadwaterError
from headwater_core.files import replace_file
from manifests.document import FORMAT, prepared, seal, unseal

RESULTS = ("examined", "damaged", "missing", "unexamined")  # by the names of Report.sums
SHARES_MAX = 10_000  # of a sample
DAY_MS = 86_400_000
RETRY_S = 60.0  # after a save that failed

Count = Annotated[int, msgspec.Meta(ge=0)]

log = structlog.get_logger()


class Share(NamedTuple):
    """One of `of` shares of all objects: another one each day."""

    number: int
    of: int


class ScrubRun(NamedTuple):
    """What one run says of the whole archive, by its arguments and sums, which come from another process.

    found        by RESULTS
    is_whole     did it look at every partition, and end by itself?
    is_complete  could it examine all that it looked at?
    is_read      did it read every object?
    share        the one that it read of all objects; None: no sample, or of a part of the archive
    """

    ended_ms: int
    found: dict[str, int]
    is_whole: bool
    is_complete: bool
    is_read: bool
    share: Share | None

    @classmethod
    def of(cls, arguments: Mapping[str, Any], results: Mapping[str, Any], *, ended_ms: int, by_itself: bool) -> "ScrubRun":
        """What is not said, as by another version, was not done."""
        found = {each: _count(results, each, 0) for each in RESULTS}
        skipped = _count(results, "skipped", -1)
        is_whole = by_itself and not arguments.get("selection") and found["examined"] + max(skipped, 0) > found["unexamined"]
        is_complete, reads = found["unexamined"] == 0, is_whole and arguments.get("data", True) is True
        share = Share(_count(results, "share", -1), _count(results, "shares", 0))
        is_sampled = reads and is_complete and 0 <= share.number < share.of <= SHARES_MAX
        is_read = reads and skipped == 0 and found["examined"] > 0
        return cls(ended_ms, found, is_whole, is_complete, is_read, share if is_sampled else None)


@prepared
class LastScrub(msgspec.Struct, frozen=True, kw_only=True):
    """
    ended_ms   when every object had been read: by one run, or by the last share of a round of samples. None: that never was
    objects    by RESULTS, of the last run that read every object, and flaws found since; only what is known
    damage_ms  when a run last found damage
    shares_ms  when each share of the samples was last read; 0: never
    """

    format: tuple[int, int] = FORMAT
    ended_ms: Count | None = None
    objects: dict[str, Count] = {}
    damage_ms: Count = 0
    shares_ms: tuple[Count, ...] = ()

    def after(self, run: ScrubRun) -> "LastScrub":
        """A run raises what it has found, and settles what it has looked at: one that reads no bytes shows that nothing is missing, and not
        that nothing is damaged; one that could not examine something shows neither."""
        found, flaws = run.found, dict[str, int]()
        for flaw, was_looked_for in (("missing", run.is_whole), ("damaged", run.is_read)):
            is_settled = was_looked_for and run.is_complete
            count = found[flaw] if is_settled else max(found[flaw], self.objects.get(flaw, 0))
            if run.is_read or flaw in self.objects or count:
                flaws[flaw] = count
        changed = msgspec.structs.replace(
            self,
            ended_ms=run.ended_ms if run.is_read else self.ended_ms,
            objects={**(found if run.is_read else self.objects), **flaws},
            damage_ms=run.ended_ms if found["damaged"] else self.damage_ms,
        )
        return changed if run.share is None else changed._sampled(run.share, run.ended_ms)

    def _sampled(self, share: Share, ended_ms: int) -> "LastScrub":
        """A round is complete when each share was read within two periods: a day may be missed. One without damage settles that."""
        shares_ms = list(self.shares_ms if len(self.shares_ms) == share.of else (0,) * share.of)
        shares_ms[share.number] = ended_ms
        changed, oldest_ms = msgspec.structs.replace(self, shares_ms=tuple(shares_ms)), min(shares_ms)
        if oldest_ms <= max(0, ended_ms - (2 * share.of + 1) * DAY_MS):
            return changed
        is_sound = oldest_ms > self.damage_ms and "damaged" in self.objects
        return msgspec.structs.replace(changed, ended_ms=ended_ms, objects=self.objects | ({"damaged": 0} if is_sound else {}))


NO_SCRUB = LastScrub()


def _count(results: Mapping[str, Any], name: str, otherwise: int) -> int:
    value = results.get(name)
    return value if isinstance(value, int) else otherwise


class ScrubMemory:
    """The file with it. `keep` and `last` are for any thread; `run` writes, since a disk may hang.

    Damage of the file is unknown knowledge: the agent begins without.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._wake, self._lock = threading.Event(), threading.Lock()
        self.last, self._saved = _load(path), True

    def keep(self, last: LastScrub) -> None:
        with self._lock:
            self.last, self._saved = last, False
        self._wake.set()

    def save(self) -> None:
        """Raises what `replace_file` raises; then it is still to be saved."""
        with self._lock:
            last, is_saved, self._saved = self.last, self._saved, True
        if is_saved:
            return
        try:
            replace_file(self._path, seal(last))
        except HeadwaterError:
            with self._lock:
                self._saved = False
            raise

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set: see `wake`. What is to be saved by then is tried again."""
        wait_s: float | None = None
        while True:
            is_last = stop.is_set()
            try:
                self.save()
                wait_s = None
            except HeadwaterError as error:
                log.warning("last_scrub_not_saved", reason=str(error))
                wait_s = RETRY_S
            if is_last:
                return
            self._wake.wait(wait_s)
            self._wake.clear()

    def wake(self) -> None:
        self._wake.set()


def _load(path: Path) -> LastScrub:
    try:
        return unseal(path.read_bytes(), LastScrub, str(path))
    except FileNotFoundError:
        return LastScrub()
    except (OSError, HeadwaterError) as error:
        log.warning("last_scrub_unknown", reason=str(error))
        return LastScrub()
