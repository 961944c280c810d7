"""The agent's rounds over the partitions that it holds: each is trimmed, and what nothing refers to any more is deleted.

A round looks only where something may have changed: a step that did something since the last look, other settings, an orphan or an
entry whose time has come, an unfinished upload. What is idle costs no request, also after a restart: see `handover`. A round is spread over
half of the interval, as a look at each of ten thousand partitions would else be a burst that others wait for.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import structlog

from archival.collection.collector import Collected
from archival.collection.handover import CollectionLook, settings_digest
from archival.fleet import ArchiverFleet
from headwater_core.errors import Fenced, HeadwaterError, TransientError
from headwater_core.objectstore.store import UnfinishedUpload
from headwater_core.partition import PartitionId
from manifests import chunk_keys, keys

ABANDONED_S = 3600.0  # a file of a directory store that nobody writes to any more
FIRST_S = 600.0  # after a start: archiving comes first
PAUSE_S = 1.0  # between two looks, at most
_WAKE_S = 30.0  # settings may have changed

log = structlog.get_logger()


class Upkeep:
    """Collects for `fleet`. One thread at a time; commands may collect beside it."""

    def __init__(self, fleet: ArchiverFleet) -> None:
        self._fleet, self._clock = fleet, fleet.clock
        self._looks: dict[PartitionId, CollectionLook] = dict(fleet.handed_over)

    def run(self, stop: threading.Event) -> None:
        """A round every `gc_interval_s`, until `stop` is set."""
        due_s = self._clock.monotonic_s() + FIRST_S
        while not stop.wait(_WAKE_S):
            interval_s = self._fleet.settings().gc_interval_s
            if not interval_s or self._clock.monotonic_s() < due_s:
                continue
            due_s = self._clock.monotonic_s() + interval_s
            try:
                pause_s = min(PAUSE_S, interval_s / 2 / max(1, len(self._fleet.held())))
                for done in self.round(stop):
                    if done.error is not None:
                        _report(done.partition, done.error)
                    if done.kept:
                        log.error("orphans_kept", partition=str(done.partition), topic_id=done.partition.topic_id, reason=done.kept)
                    stop.wait(pause_s)
            except Exception:  # a mistake of ours, which must not end all rounds
                log.exception("collection_failed")

    def round(self, stop: threading.Event) -> Iterator[Collected]:
        """One round; what became of each partition that was looked at."""
        held = self._fleet.held()
        uploads = self._unfinished()
        for gone in self._looks.keys() - {partition for partition, _ in held}:
            del self._looks[gone]
        for gone in self._fleet.collection_troubles.keys() - {partition for partition, _ in held}:
            self._fleet.collection_troubles.pop(gone, None)
        for partition, known in held:
            if stop.is_set():
                return
            begun = uploads_of(uploads, partition)
            settings = settings_digest(self._fleet.settings_for(partition.topic))  # what changes during the look makes the next one due
            look, now_ms = self._looks.get(partition), self._clock.now_ms()
            if self._fleet.take_worked_on(partition):
                look = None
            is_same = look is not None and look.is_at(known) and look.settings == settings
            if look is not None and is_same and not begun and (look.again_ms is None or now_ms < look.again_ms):
                continue
            self._looks.pop(partition, None)
            done = self._fleet.collect(partition, uploads=begun, unasked=True, stop=stop.is_set)
            if done.error is None:
                self._looks[partition] = CollectionLook(done.version, settings, done.again_ms, done.commit_id)
            yield done

    def hand_over(self) -> None:
        """Leave the next agent on the data directory what it need not look at again. To be called when all steps have ended."""
        fleet, held = self._fleet, dict(self._fleet.held())
        looks = {
            each: look for each, look in self._looks.items() if each in held and look.is_at(held[each]) and not fleet.take_worked_on(each)
        }
        with suppress(HeadwaterError):  # the next one looks at each of them
            fleet.handover.leave(looks)

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
            chunk = chunk_keys.parse(upload.key)
            place = keys.home(upload.key) if chunk is None else _shared_prefix(chunk.topic, chunk.partition)
            found.setdefault(place, []).append(upload)
        elif upload.begun_ms <= fleet.clock.now_ms() - ABANDONED_S * 1000:
            fleet.abort(upload)
    return found


def uploads_of(found: Mapping[str, Sequence[UnfinishedUpload]], partition: PartitionId) -> list[UnfinishedUpload]:
    """Those of `unfinished_by_prefix` that are a partition's, or may be: below chunks/ no key says of which incarnation it is."""
    shared = found.get(_shared_prefix(partition.topic, partition.partition), ())
    return [*found.get(keys.data_prefix(partition), ()), *shared]


def _shared_prefix(topic: str, partition: int) -> str:
    return f"{chunk_keys.CHUNKS}{topic}/{partition}"


def _report(partition: PartitionId, error: HeadwaterError) -> None:
    if isinstance(error, Fenced):
        return  # it is another agent's now
    if isinstance(error, TransientError):
        log.warning("collection_postponed", partition=str(partition), reason=str(error))
    else:
        log.error("collection_stopped", partition=str(partition), reason=str(error))
