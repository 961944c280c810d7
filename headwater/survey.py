"""The status of all partitions, from the local logs, the bucket and what a running agent knows."""

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from archival.broker.broker_logs import BrokerLogs, Watermark
from archival.known_pauses import KnownPauses
from archival.partition.tails import Tails
from archival.partition_status import KnownHead, PartitionStatus, backlog, status_of
from archival.plan.policy import Policy, PolicyFor
from archival.plan.role import Acting, archiving_role
from archival.plan.stream_plan import OpenStream
from archival.watermark import WatermarkOrigin, WatermarkSource
from headwater.config import Config
from headwater.known_settings import kept_settings
from headwater.options import parse_selection
from headwater.output import say
from headwater.overview import missing_topics
from headwater.store_identity import check_belongs
from headwater.wiring import Bucket, archived, load_head, open_broker, open_bucket, open_cache, open_log_dirs
from headwater_core.clock import SystemClock
from headwater_core.errors import (
    CorruptData,
    ForeignOwner,
    HeadwaterError,
    NotFound,
    TransientError,
    Unauthorised,
    UnsupportedFormat,
)
from headwater_core.objectstore.guard import GuardedStore
from headwater_core.partition import PartitionId, TopicPartition
from headwater_core.segments.local_log import LocalLog
from headwater_core.segments.log_dirs import LogDirs, parse_directory_name
from headwater_core.threads import DaemonThreads
from hydration.cache.cache_directory import folder
from manifests.head import Head
from manifests.repository import ManifestRepository
from manifests.topic_survey import UnreadableTopic
from recovery import awaits_broker

SILENCE_S = 5.0  # a person waits for the result
LOADERS = 8  # heads that are loaded at once

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """What a running agent knows without the store.

    heads     of the partitions that it archives itself
    offsets   (archive start, last offset) of these and others, by the control log
    troubles  why the archiving of a partition has stopped
    stream    what streaming offload has taken of a partition and not listed yet
    broker    what the broker says of its logs; None where it is not asked
    tails     since when tails have waited; None: read from the data directory
    pauses    what is paused; None: read from the bucket
    release_reason  why no more of a partition is released; "" where that is not known
    """

    heads: Mapping[PartitionId, KnownHead] = field(default_factory=dict)
    offsets: Mapping[PartitionId, tuple[int, int]] = field(default_factory=dict)
    troubles: Mapping[TopicPartition, str] = field(default_factory=dict)
    stream: Callable[[PartitionId], OpenStream | None] = lambda _: None
    tails: Tails | None = None
    broker: BrokerLogs | None = None
    pauses: KnownPauses | None = None
    release_reason: Callable[[PartitionId], str] = lambda _: ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surveyed:
    """The status of one partition, and what it follows from.

    partition  None where a directory cannot be read, and so its topic id is not known
    log      None where there is none here
    head     None where the bucket has none, or none that is known
    origin   of the log's high watermark
    trouble  what has stopped it, apart from what `log` and `head` say
    stream   what streaming offload has taken of it, as far as that is known
    """

    status: PartitionStatus
    partition: PartitionId | None = None
    log: LocalLog | None = None
    head: Head | None = None
    origin: WatermarkOrigin | None = None
    policy: Policy
    tail_age_ms: int = 0
    trouble: str = ""
    stream: OpenStream | None = None


def survey_partitions(config: Config, selection: str | None, policy_for: PolicyFor = Policy.of) -> Iterator[PartitionStatus]:
    """The statuses alone, without an agent: see `survey_each`."""
    for each in survey_each(config, selection, policy_for):
        yield each.status


def survey_each(
    config: Config,
    selection: str | None,
    policy_for: PolicyFor = Policy.of,
    *,
    bucket: Bucket | None = None,
    known: Knowledge | None = None,
) -> Iterator[Surveyed]:
    """One per partition that is local, archived, or both, by topic and number. `recovered` in a directory that a recovery made
    and no broker has started on: it holds nothing new, whatever its leader epochs are.

    When the store does not answer for SILENCE_S, reports what is known without it, and its age. Where `log.bootstrap_servers` names a
    broker, it is asked how far its logs are committed; what it does not say in that time comes from its last answer or its checkpoint.

    Raises NotFound when there is no partition. Raises after the last status: the store's error when it did not answer, and Partial
    when the partitions of some topic in the bucket are unknown.

    policy_for  what a pass may archive of a topic with these settings
    bucket      already open; None: opened here
    """
    topic, number = parse_selection(selection) if selection else (None, None)

    def wanted(place: TopicPartition) -> bool:
        return topic in (None, place.topic) and number in (None, place.partition)

    local: dict[PartitionId, LocalLog] = {}
    origins: dict[PartitionId, WatermarkOrigin] = {}
    unreadable: dict[TopicPartition, str] = {}
    if config.log.dirs:
        dirs = open_log_dirs(config)
        found_local = dirs.survey()
        with nullcontext(known.broker) if known else _own_broker(config, dirs) as broker:
            for log, origin in _with_watermarks([log for log in found_local.logs if wanted(log.partition.topic_partition)], broker):
                local[log.partition], origins[log.partition] = log, origin
        for path, error in found_local.problems:
            place = parse_directory_name(path.name)
            if place is None:
                raise error
            if wanted(place):
                unreadable[place] = str(error)
    is_agents, known = known is not None, known or Knowledge()
    answers = _BucketAnswers(bucket or _bucket(config), config.node.data_dir, selection, local, _own(known.heads, local), known.pauses)
    if not is_agents:  # an agent's configuration has them
        config = config.with_commands(answers.settings)
    remembered = {partition for partition in (*known.heads, *known.offsets) if wanted(partition.topic_partition)}
    everywhere = set(local) | answers.partitions | (remembered if answers.error else set())
    if not everywhere and not unreadable:
        if answers.error:
            raise answers.error
        for each in answers.lost:
            raise each.error
        raise NotFound(f"{selection or 'no partition'} is neither in a log directory nor in {config.store.url}")
    tails = known.tails or Tails(config.node.data_dir / "tails.json", SystemClock())
    damaged = {each.topic: str(each.error) for each in answers.lost}
    cached = _cached(config)
    now_ms = SystemClock().now_ms()
    recovered = {directory for directory in map(Path, config.log.dirs) if awaits_broker(directory)}
    for partition in sorted(everywhere, key=lambda each: (each.topic, each.partition, each not in local)):
        place = partition.topic_partition
        head, age_s = answers.heads.get(partition), 0.0
        if partition not in answers.heads and partition in known.heads:
            head, age_s = known.heads[partition].head, known.heads[partition].age_s
        policy = answers.applied(place, policy_for(config.archival_for(partition.topic)))
        tail_age_ms = tails.age_ms(partition, head.next_offset) if head else 0
        trouble = (
            answers.damage.get(partition, "") or unreadable.pop(place, "") or damaged.get(place.topic, "") or known.troubles.get(place, "")
        )
        judged = partial(
            status_of,
            partition,
            head=head,
            policy=policy,
            tail_age_ms=tail_age_ms,
            now_ms=now_ms,
            cached_bytes=cached.get(folder(partition), 0),
            origin=origins.get(partition),
            stream=(stream := known.stream(partition)),
        )
        here = local.get(partition)
        try:
            found = judged(here, trouble=trouble)
        except TransientError as error:
            assert here is not None
            found = replace(judged(None), state="unknown", reason=str(error))
            found = replace(found, local_start=here.start_offset, high_watermark=here.high_watermark)
        if partition in local and local[partition].directory.parent in recovered and found.state != "stopped":
            found = replace(found, state="recovered", reason="read-only until a broker starts on it")
        found = replace(found, known_age_s=age_s)
        if answers.error and partition not in answers.heads:
            found = _without_bucket(found, answers.error, head, local.get(partition), known.offsets.get(partition))
        yield Surveyed(
            status=found,
            partition=partition,
            log=local.get(partition),
            head=head,
            origin=origins.get(partition),
            policy=policy,
            tail_age_ms=tail_age_ms,
            trouble=trouble,
            stream=stream,
        )
    for place, problem in sorted(unreadable.items()):
        nothing = PartitionStatus.unknown(place, "stopped", problem)
        yield Surveyed(status=nothing, policy=policy_for(config.archival_for(place.topic)), trouble=problem)
    if answers.error:
        raise answers.error
    if answers.lost:
        raise missing_topics(damaged)


@contextmanager
def _own_broker(config: Config, dirs: LogDirs) -> Iterator[BrokerLogs | None]:
    """Where no agent knows what it says: the broker beside us, for the time of the block."""
    client = open_broker(config, dirs)
    if client is None:
        yield None
        return
    try:
        yield BrokerLogs(dirs, client, SystemClock())
    finally:
        client.close()


def _with_watermarks(logs: Sequence[LocalLog], broker: BrokerLogs | None) -> Iterator[tuple[LocalLog, WatermarkOrigin]]:
    """Each log with the newest high watermark that is known, and whose word that is. The broker is waited for no longer than SILENCE_S."""
    said: Mapping[PartitionId, Watermark] = {}
    if broker is not None:
        threads = DaemonThreads(1, "broker")
        asking = threads.submit(broker.watermarks, logs, ask=True)
        threads.shutdown(wait=False)
        said = asking.result() if wait((asking,), SILENCE_S).done else broker.watermarks(logs, ask=False)
    now_ms = SystemClock().now_ms()
    for log in logs:
        if (mark := said.get(log.partition)) is not None:
            yield replace(log, high_watermark=mark.offset), WatermarkOrigin(WatermarkSource.BROKER, round(mark.age_s, 3))
        else:
            yield log, WatermarkOrigin.of_checkpoint(log.checkpoint_ms, now_ms)


def _own(heads: Mapping[PartitionId, KnownHead], local: Mapping[PartitionId, LocalLog]) -> set[PartitionId]:
    """The partitions that this agent archives now: no other agent changes their heads."""
    return {partition for partition in heads if partition in local and isinstance(archiving_role(local[partition]), Acting)}


def _without_bucket(
    found: PartitionStatus, error: HeadwaterError, head: Head | None, log: LocalLog | None, offsets: tuple[int, int] | None
) -> PartitionStatus:
    """`found` while the bucket does not answer: by the last known head, else by the control log's offsets, else unknown."""
    why = str(error) if isinstance(error, Unauthorised) else f"the bucket does not answer: {error}"
    if head is not None:
        return replace(found, reason=f"{found.reason}; {why}")
    is_excluded = found.state == "excluded"
    if is_excluded:
        found = replace(found, reason=f"{found.reason}; {why}", known_age_s=None)
    else:
        found = replace(found, lag_bytes=None, lag_s=None, state="unknown", reason=why, known_age_s=None)
    if offsets is None:
        return found
    start, last = offsets
    try:
        lag = backlog(log, last + 1) if log and not is_excluded else None
    except HeadwaterError:  # of the local log
        lag = None
    return replace(
        found,
        archive_start=start,
        last_offset=last if last >= 0 else None,
        lag_bytes=lag.size_bytes if lag else None,
        lag_s=lag.age_s(SystemClock().now_ms()) if lag else None,
    )


class _BucketAnswers:
    """What the bucket says of its partitions. Requests run in daemon threads: a store that hangs must not delay what is known without it.

    partitions  that are in the bucket, or local
    heads       of those that were loaded; None: the bucket has no head
    damage      why a head cannot be used
    lost        the documents of topics that cannot be read
    settings    what was set by command; while the bucket does not say it: as an agent here knew it last
    error       why the bucket did not answer; then the other fields may be incomplete

    Raises WrongStore and StoreGone when it is not the store of the data directory.
    """

    def __init__(
        self,
        bucket: Bucket | None,
        data_dir: Path,
        selection: str | None,
        local: Collection[PartitionId],
        own: Collection[PartitionId],
        pauses: KnownPauses | None,
    ) -> None:
        self.partitions: set[PartitionId] = set()
        self.heads: dict[PartitionId, Head | None] = {}
        self.damage: dict[PartitionId, str] = {}
        self.lost: list[UnreadableTopic] = []
        self.error: HeadwaterError | None = None
        self.settings = kept_settings(data_dir)
        self._pauses = pauses
        if bucket is None:
            self.heads = dict.fromkeys(local)
            return
        self._calls = 0  # that have begun; only a change of it matters, so it needs no lock
        store = GuardedStore(bucket.store, self._counted)
        self._bucket = Bucket(store, ManifestRepository(store))
        self._pauses = pauses or KnownPauses(self._bucket.manifests, SystemClock())
        try:
            self._bounded(lambda: check_belongs(self._bucket.manifests, url=self._bucket.store.url, data_dir=data_dir))
            found, self.lost = self._bounded(lambda: self._list(selection))
            self.partitions = {*found, *local}
            self._bounded(lambda: self._load(self.partitions - set(own)))
            self._bounded(self._pauses.now)
            if pauses is None:
                with suppress(CorruptData, UnsupportedFormat):  # as an agent would: what was set is not known then
                    self.settings = self._bounded(self._bucket.manifests.load_settings)
        except (TransientError, Unauthorised) as error:
            self.error = error

    def applied(self, place: TopicPartition, policy: Policy) -> Policy:
        """`policy` with what is paused; as it is while the bucket does not say that."""
        return self._pauses.applied(place, policy) if self._pauses and self._pauses.is_known else policy

    def _counted(self) -> AbstractContextManager[object]:
        self._calls += 1
        return nullcontext()

    def _list(self, selection: str | None) -> tuple[list[PartitionId], list[UnreadableTopic]]:
        lost: list[UnreadableTopic] = []
        with suppress(NotFound):
            return [partition for _, partition in archived(self._bucket, selection, lost)], lost
        return [], lost

    def _load(self, partitions: Collection[PartitionId]) -> None:
        todo = deque(sorted(partitions))
        failed: list[Exception] = []

        def work() -> None:
            while not failed:
                try:
                    partition = todo.popleft()
                except IndexError:
                    return
                try:
                    self.heads[partition] = load_head(self._bucket, partition)
                except (CorruptData, ForeignOwner, UnsupportedFormat) as error:
                    self.heads[partition] = None
                    self.damage[partition] = str(error)
                except Exception as error:  # of any kind: a head that was not read must not pass for a missing one
                    failed.append(error)

        threads = [threading.Thread(target=work, daemon=True) for _ in range(min(LOADERS, len(todo)))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for error in failed:
            raise error

    def _bounded(self, ask: Callable[[], _T]) -> _T:
        """The result of `ask`. Raises TransientError when the store makes no progress for SILENCE_S; then the thread is abandoned."""
        answers: SimpleQueue[_T | Exception] = SimpleQueue()

        def work() -> None:
            try:
                answers.put(ask())
            except Exception as error:
                answers.put(error)

        threading.Thread(target=work, daemon=True).start()
        while True:
            begun = self._calls
            try:
                answer = answers.get(timeout=SILENCE_S)
            except Empty:
                if self._calls != begun:
                    continue
                raise TransientError(f"no answer from {self._bucket.store.url} for {SILENCE_S:.0f} s") from None
            if isinstance(answer, Exception):
                raise answer
            return answer


def _bucket(config: Config) -> Bucket | None:
    """None before the first pass has made the archive's directory: nothing is archived. Raises StoreGone when it existed before."""
    bucket = open_bucket(config)
    if config.log.dirs and config.store.url.startswith("file:"):
        path = Path(unquote(urlsplit(config.store.url).path))
        if not path.exists():
            check_belongs(bucket.manifests, url=bucket.store.url, data_dir=config.node.data_dir)
            say(f"nothing is archived yet: {path} does not exist")
            return None
    return bucket


def _cached(config: Config) -> dict[str, int]:
    sizes: dict[str, int] = {}
    cache = open_cache(config)
    for file in cache.show():
        directory = file.name.partition("/")[0]
        sizes[directory] = sizes.get(directory, 0) + file.size_bytes
    cache.close()
    return sizes
