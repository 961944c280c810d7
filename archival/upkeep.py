"""The agent's rounds over the partitions that it holds: each is trimmed, and what nothing refers to any more is deleted.

A round looks only where something may have changed: a commit since the last look, other settings, an orphan or an entry whose time has
come, an unfinished upload. What is idle costs no request. After a start each partition is looked at once: an upload that was cut short
leaves no other trace.
"""

import threading
from collections.abc import Iterator
from typing import NamedTuple

import structlog

from archival.collection.collector import Collected
from archival.config import ArchivalConfig
from archival.fleet import ArchiverFleet
from headwater_core.errors import Fenced, HeadwaterError, TransientError
from headwater_core.objectstore.store import UnfinishedUpload
from headwater_core.partition import PartitionId
from manifests import keys

ABANDONED_S = 3600.0  # a file of a directory store that nobody writes to any more
FIRST_S = 600.0  # after a start: archiving comes first
_WAKE_S = 30.0  # settings may have changed

log = structlog.get_logger()


class _Look(NamedTuple):
    """At what a partition was looked, by which settings, and when something may leave though nothing is committed."""

    version: int
    settings: ArchivalConfig
    again_ms: int | None


class Upkeep:
    """Collects for `fleet`. One thread at a time; commands may collect beside it."""

    def __init__(self, fleet: ArchiverFleet) -> None:
        self._fleet, self._clock = fleet, fleet.clock
        self._looks: dict[PartitionId, _Look] = {}

    def run(self, stop: threading.Event) -> None:
        """A round every `gc_interval_s`, until `stop` is set."""
        due_s = self._clock.monotonic_s() + FIRST_S
        while not stop.wait(_WAKE_S):
            interval_s = self._fleet.settings().gc_interval_s
            if not interval_s or self._clock.monotonic_s() < due_s:
                continue
            due_s = self._clock.monotonic_s() + interval_s
            try:
                for done in self.round(stop):
                    if done.error is not None:
                        _report(done.partition, done.error)
            except Exception:  # a mistake of ours, which must not end all rounds
                log.exception("collection_failed")

    def round(self, stop: threading.Event) -> Iterator[Collected]:
        """One round; what became of each partition that was looked at."""
        held = self._fleet.held()
        uploads = self._unfinished()
        for gone in self._looks.keys() - {partition for partition, _ in held}:
            del self._looks[gone]
        for partition, version in held:
            if stop.is_set():
                return
            begun = uploads.get(keys.data_prefix(partition), ())
            settings = self._fleet.settings_for(partition.topic)  # before the look: what changes during it makes the next one due
            look, now_ms = self._looks.get(partition), self._clock.now_ms()
            is_same = look is not None and (look.version, look.settings) == (version, settings)
            if look is not None and is_same and not begun and (look.again_ms is None or now_ms < look.again_ms):
                continue
            done = self._fleet.collect(partition, uploads=begun, unasked=True, stop=stop.is_set)
            if done.error is None:
                self._looks[partition] = _Look(done.version, settings, done.again_ms)
            yield done

    def _unfinished(self) -> dict[str, list[UnfinishedUpload]]:
        try:
            return unfinished_by_prefix(self._fleet)
        except HeadwaterError as error:  # a server may not list them
            log.warning("uploads_not_listed", reason=str(error))
            return {}


def unfinished_by_prefix(fleet: ArchiverFleet) -> dict[str, list[UnfinishedUpload]]:
    """Unfinished uploads by the prefix that their keys are below. Those whose key is not known are aborted, once they are old. Raises what
    the store raises."""
    found: dict[str, list[UnfinishedUpload]] = {}
    for upload in fleet.unfinished_uploads():
        if upload.key:
            found.setdefault(upload.key.rpartition("/")[0] + "/", []).append(upload)
        elif upload.begun_ms <= fleet.clock.now_ms() - ABANDONED_S * 1000:
            fleet.abort(upload)
    return found


def _report(partition: PartitionId, error: HeadwaterError) -> None:
    if isinstance(error, Fenced):
        return  # it is another agent's now
    if isinstance(error, TransientError):
        log.warning("collection_postponed", partition=str(partition), reason=str(error))
    else:
        log.error("collection_stopped", partition=str(partition), reason=str(error))
