"""Metrics in Prometheus' form, made from what the agent has counted anyway. docs/metrics.md names each of them.

Label values come from lists that do not grow with what clients send; topics beyond TOPICS_MAX have no series of their own.
"""

import platform
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from archival.cluster_archiver import SnapshotTally
from archival.fleet import LOG_DIRS, PASSES
from archival.partition_status import PartitionStatus
from archival.schedule.scheduler import SchedulerLoad
from headwater.admin.health import Health
from headwater.admin.operations import OTHER, VERBS, Operation, OperationState, OperationTally
from headwater.admin.status_board import UNMEASURED, BoardEntry, StatusBoard, state_of
from headwater.drill.drill_report import DrillOutcome
from headwater.drill.report_store import LastDrill
from headwater.gateway.gateway_meter import GatewayMeter
from headwater.gateway.proxy.offered_apis import OFFERED
from headwater_core.control.supervisor import ControlHealth
from headwater_core.durations import Durations
from headwater_core.errors import CorruptData, DiskFull, HeadwaterError, SuspectedGap, Unauthorised, UnsupportedFormat
from headwater_core.layouts.chunks.upload_pool import UploadPool
from headwater_core.layouts.streaming import OffloadBudget
from headwater_core.objectstore.store_meter import StoreMeter
from headwater_core.partition import TopicPartition
from hydration.archive.hydrator import Hydrator

TOPICS_MAX = 1000
PARTITIONS_MAX = 20_000
FRESH_S = 1.0  # an answer is given again for so long, to all who ask: two hundred scrapers cost as much as one
RENDER_SHARE = 0.005  # of the time: while ten thousand partitions are rendered, Kafka clients wait
AGE_MAX_S = 10.0  # of an answer, though it takes more: scrapers come less often

STATES = (
    "archived",
    "due",
    "waiting",
    "paused",
    "damaged",
    "excluded",
    "standby",
    "behind",
    "stopped",
    "needs replacement",
    "needs upgrade",
    "recovered",
    "unknown",
)
STALLED = ("stopped", "behind", "needs replacement", "needs upgrade")
REASONS: dict[str, type[HeadwaterError] | None] = {  # the first that fits
    "corrupt_data": CorruptData,
    "suspected_gap": SuspectedGap,
    "unsupported_format": UnsupportedFormat,
    "unauthorised": Unauthorised,
    "disk_full": DiskFull,
    "behind": None,
    "needs_replacement": None,
    "needs_upgrade": None,
    "other": HeadwaterError,
}
ROLES = ("leader", "follower", "none")
OUTCOMES = tuple(each for each in OperationState if each is not OperationState.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSources:
    """Where metrics come from. None of it waits.

    board    None, as `load`, where there are no log directories
    operations  that were requested
    failure  why the last step of a partition, or of the log directories as a whole, failed, if it did
    defects  number of unexpected exceptions
    pool     what has gathered to become chunks; None where there are no log directories
    snapshots  of the cluster's metadata; None where this agent takes none
    snapshot_lag_s  for how long its newest state has not been archived
    buffer   of streaming offload; None where there are no log directories
    drill    the last one; None: none is known of
    """

    version: str
    health: Health
    store: StoreMeter
    gateway: GatewayMeter
    hydrator: Hydrator
    control: Callable[[], ControlHealth]
    operations: Callable[[], OperationTally]
    board: StatusBoard | None = None
    load: Callable[[], SchedulerLoad | None] = lambda: None
    failure: Callable[[TopicPartition], HeadwaterError | None] = lambda _: None
    defects: Callable[[], int] = lambda: 0
    pool: UploadPool | None = None
    snapshots: Callable[[], SnapshotTally | None] = lambda: None
    snapshot_lag_s: Callable[[], float] = lambda: 0.0
    drill: Callable[[], LastDrill | None] = lambda: None
    partitions: bool = False
    buffer: OffloadBudget | None = None


class MetricsText(NamedTuple):
    """until_s: when it is rendered again, on the monotonic clock"""

    body: bytes
    media_type: str
    until_s: float


class Metrics:
    """Rendered metrics, for one event loop."""

    def __init__(self, sources: MetricSources, monotonic_s: Callable[[], float]) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(AgentCollector(sources))
        ProcessCollector(registry=self._registry)
        self._monotonic_s = monotonic_s
        self._rendered: dict[str, MetricsText] = {}

    def render(self, accept: str) -> MetricsText:
        """accept: the header, which chooses OpenMetrics or the older text form"""
        newer = "application/openmetrics-text" in accept[:1000].lower()
        media_type = openmetrics.CONTENT_TYPE_LATEST if newer else CONTENT_TYPE_PLAIN_0_0_4
        rendered, began_s = self._rendered.get(media_type), self._monotonic_s()
        if rendered is None or began_s >= rendered.until_s:
            body = openmetrics.generate_latest(self._registry) if newer else generate_latest(self._registry)  # type: ignore[no-untyped-call]
            took_s = self._monotonic_s() - began_s
            rendered = self._rendered[media_type] = MetricsText(
                body, media_type, began_s + min(AGE_MAX_S, max(FRESH_S, took_s / RENDER_SHARE))
            )
        return rendered


class AgentCollector(Collector):
    """All of the agent's own metrics, as they are now."""

    def __init__(self, sources: MetricSources) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        sources = self._sources
        yield InfoMetricFamily("headwater_build", "This program.", {"version": sources.version, "python": platform.python_version()})
        yield _labelled(
            "headwater_check_ok", "1 while a check of /readyz holds.", "check", ((name, not why) for name, why in sources.health.ready())
        )
        if sources.board is not None:
            yield from self._archive(sources.board)
        yield from self._store()
        yield from self._reading()
        yield from self._gateway()
        yield from self._control()
        yield from self._operations()
        yield from self._cluster()
        yield from self._drill()

    def _archive(self, board: StatusBoard) -> Iterator[Metric]:
        entries, now_s = board.entries(), board.clock.monotonic_s()
        damaged = self._sources.hydrator.damaged()
        states = Counter(state_of(entry, damaged) for entry in entries)
        yield _labelled(
            "headwater_partitions", "Partitions in the log directories, by state.", "state", ((each, states[each]) for each in STATES)
        )
        stalled = Counter(self._reason(entry) for entry in entries if entry.status.state in STALLED)
        whole = self._sources.failure(LOG_DIRS)
        if whole is not None and not isinstance(whole, PASSES):
            stalled[_kind(whole)] += 1
        yield _labelled(
            "headwater_stalled_partitions",
            "Partitions whose archiving has stopped, by reason.",
            "reason",
            ((each, stalled[each]) for each in REASONS),
        )
        measured = [entry for entry in entries if entry.status.state not in UNMEASURED]
        lags = [lag for entry in measured if (lag := entry.lag_s(now_s)) is not None]
        worst = GaugeMetricFamily(
            "headwater_archive_worst_lag_seconds", "How long the oldest committed record that is not archived has waited.", labels=()
        )
        if lags:
            worst.add_metric((), max(lags))
        yield worst
        yield _gauge("headwater_archive_unknown_lag_partitions", "Partitions whose lag is not known.", len(measured) - len(lags))
        yield _gauge(
            "headwater_status_age_seconds",
            "The age of the oldest status of a partition.",
            max((now_s - entry.now_s for entry in entries), default=0.0),
        )
        yield from self._topics(measured, now_s)
        if self._sources.partitions:
            yield from self._partitions(measured, now_s)
        yield from self._offload([entry.status for entry in measured])
        if board.last_commit_ms is not None:
            yield _gauge(
                "headwater_last_commit_timestamp_seconds", "When this process last committed a manifest.", board.last_commit_ms / 1000
            )
        yield CounterMetricFamily("headwater_defects", "Number of unexpected exceptions.", self._sources.defects())
        if (load := self._sources.load()) is not None:
            yield _gauge("headwater_uploads_in_flight", "Partitions of which something is archived or merged right now.", load.in_flight)
            yield _gauge("headwater_uploads_waiting", "Partitions that wait for their turn, or for another try.", load.waiting)
        if (pool := self._sources.pool) is not None:
            yield _gauge("headwater_chunk_buffers", "Partitions of which something has gathered to become chunks.", pool.queues)
            yield _gauge("headwater_chunk_buffers_bytes", "What has gathered to become chunks, in the logs.", pool.size_bytes)
            yield _gauge("headwater_chunk_uploads_failed", "Partitions whose last upload of a chunk failed: tried again.", pool.failed)

    def _offload(self, statuses: Sequence[PartitionStatus]) -> Iterator[Metric]:
        """What keeps settings of offload from being followed."""
        yield _gauge(
            "headwater_trigger_not_applied_partitions",
            "Partitions whose trigger is not below what the broker keeps, so that they are archived at once.",
            sum(bool(each.trigger_trouble) for each in statuses),
        )
        yield _gauge(
            "headwater_offload_buffer_full_partitions",
            "Partitions of which streaming offload takes nothing more, because its buffer is full.",
            sum(bool(each.stream_trouble) for each in statuses),
        )
        if (buffer := self._sources.buffer) is not None:
            yield _gauge("headwater_offload_buffer_bytes", "What streaming offload has taken and not sent.", buffer.used_bytes)
            yield _gauge("headwater_offload_buffer_limit_bytes", "What that may take.", buffer.bytes_max)

    def _topics(self, entries: Iterable[BoardEntry], now_s: float) -> Iterator[Metric]:
        topics: dict[str, list[BoardEntry]] = defaultdict(list)
        for entry in entries:
            topics[entry.status.topic].append(entry)
        shown = sorted(topics)[:TOPICS_MAX]
        seconds = GaugeMetricFamily("headwater_archive_lag_seconds", "The worst partition's lag of each topic.", labels=("topic",))
        sizes = GaugeMetricFamily("headwater_archive_lag_bytes", "What is committed and not archived of each topic.", labels=("topic",))
        unknown = GaugeMetricFamily(
            "headwater_topic_unknown_lag_partitions", "Partitions of each topic whose lag is not known.", labels=("topic",)
        )
        for topic in shown:
            lags = [lag for entry in topics[topic] if (lag := entry.lag_s(now_s)) is not None]
            unknown.add_metric((topic,), len(topics[topic]) - len(lags))
            if lags:
                seconds.add_metric((topic,), max(lags))
                sizes.add_metric((topic,), sum(entry.status.lag_bytes or 0 for entry in topics[topic]))
        yield seconds
        yield sizes
        yield unknown
        yield _gauge(
            "headwater_topics_without_series", "Topics beyond the limit, which have no series of their own.", len(topics) - len(shown)
        )

    def _partitions(self, entries: Iterable[BoardEntry], now_s: float) -> Iterator[Metric]:
        seconds = GaugeMetricFamily("headwater_partition_archive_lag_seconds", "The lag of each partition.", labels=("topic", "partition"))
        sizes = GaugeMetricFamily(
            "headwater_partition_archive_lag_bytes", "What is committed and not archived.", labels=("topic", "partition")
        )
        shown = sorted(entries, key=lambda entry: (entry.status.topic, entry.status.partition))[:PARTITIONS_MAX]
        for entry in shown:
            labels, lag_s = (entry.status.topic, str(entry.status.partition)), entry.lag_s(now_s)
            if lag_s is not None and entry.status.lag_bytes is not None:
                seconds.add_metric(labels, lag_s)
                sizes.add_metric(labels, entry.status.lag_bytes)
        yield seconds
        yield sizes

    def _reason(self, entry: BoardEntry) -> str:
        status = entry.status
        if status.state != "stopped":
            return status.state.replace(" ", "_")
        return _kind(self._sources.failure(TopicPartition(status.topic, status.partition)))

    def _store(self) -> Iterator[Metric]:
        seconds = HistogramMetricFamily("headwater_store_call_seconds", "How long calls of the store took.", labels=("operation",))
        errors = CounterMetricFamily("headwater_store_errors", "Calls that were not answered, or refused.", labels=("operation",))
        sent = CounterMetricFamily("headwater_store_sent_bytes", "Bytes of objects written.", labels=("operation",))
        received = CounterMetricFamily("headwater_store_received_bytes", "Bytes of objects read.", labels=("operation",))
        for operation, count in self._sources.store.counts().items():
            _add_durations(seconds, (operation,), count.seconds)
            for family, value in ((errors, count.errors), (sent, count.sent_bytes), (received, count.received_bytes)):
                family.add_metric((operation,), value)
        yield from (seconds, errors, sent, received)
        yield _gauge(
            "headwater_store_failing_seconds",
            "How long the store has answered no call; 0 while it answers.",
            self._sources.store.health().failing_s,
        )

    def _reading(self) -> Iterator[Metric]:
        counters, cache = self._sources.hydrator.counters, self._sources.hydrator.cache
        yield _gauge("headwater_cache_bytes", "What the cache holds.", cache.used_bytes)
        yield _gauge("headwater_cache_limit_bytes", "What it may hold.", cache.limit_bytes)
        for name, words, value in (
            ("headwater_cache_hits", "Chunks that a reader found in the cache.", counters.chunk_hits),
            ("headwater_cache_misses", "Chunks that a reader had to wait for.", counters.chunk_misses),
            ("headwater_cache_evictions", "Files that had to make room for others.", cache.evicted),
            ("headwater_cache_bypassed", "Files that could not be written to the disk.", cache.bypassed),
            ("headwater_readahead_chunks", "Chunks requested before a reader came to them.", counters.ahead),
            ("headwater_readahead_used_chunks", "Those that a reader came to.", counters.ahead_used),
            ("headwater_readahead_wasted_chunks", "Those that were dropped, or not fetched, before one did.", counters.ahead_wasted),
            ("headwater_hydration_downloads", "Downloads of chunks.", counters.downloads),
            ("headwater_hydration_downloaded_bytes", "Bytes of them.", counters.downloaded_bytes),
            ("headwater_reads", "Reads that were answered.", counters.reads),
            ("headwater_read_fallbacks", "Reads that the first tier could not answer.", counters.fallbacks),
            ("headwater_damaged_chunks", "Chunks whose bytes did not verify.", counters.damaged),
            ("headwater_skipped_gaps", "Reads that were moved over offsets which no tier holds.", counters.gaps_skipped),
        ):
            yield CounterMetricFamily(name, words, value)
        yield _gauge(
            "headwater_damaged_objects",
            "Number of archived objects that are known to be damaged.",
            sum(map(len, self._sources.hydrator.damaged().values())),
        )
        waits = HistogramMetricFamily(
            "headwater_hydration_wait_seconds", "From a reader's need of a chunk that is not in the cache to its arrival.", labels=()
        )
        _add_durations(waits, (), counters.waits)
        yield waits

    def _control(self) -> Iterator[Metric]:
        role, leaderless_s, applied = self._sources.control()
        yield _labelled(
            "headwater_control_role", "1 for the role of this node in the control log.", "role", ((each, each == role) for each in ROLES)
        )
        yield _gauge(
            "headwater_control_leaderless_seconds", "How long this node has known of no leader; 0 while it knows one.", leaderless_s
        )
        yield _gauge("headwater_control_applied_index", "The last entry of the control log that this node has applied.", applied)

    def _operations(self) -> Iterator[Metric]:
        tally = self._sources.operations()
        ended = CounterMetricFamily("headwater_operations", "Operations that have ended.", labels=("verb", "outcome"))
        for verb in (*VERBS, OTHER):
            for outcome in OUTCOMES:
                ended.add_metric((verb, outcome.value), tally.ended.get((verb, outcome), 0))
        yield ended
        running = ((verb, tally.running.get(verb, 0)) for verb in (*VERBS, OTHER))
        yield _labelled("headwater_operations_running", "Operations that run now.", "verb", running)
        if tally.scrub.ended_ms is not None:
            yield _gauge("headwater_scrub_last_end_timestamp_seconds", "When every object had been read.", tally.scrub.ended_ms / 1000)
        if tally.scrub.objects:
            yield _labelled("headwater_scrub_last_objects", "What the last scrub found.", "result", tally.scrub.objects.items())
        recovery = tally.last.get("recover")
        if recovery is not None:
            yield _gauge("headwater_recovery_last_end_timestamp_seconds", "When the last recovery ended.", _ended_ms(recovery) / 1000)

    def _drill(self) -> Iterator[Metric]:
        last = self._sources.drill()
        if last is None:
            return
        yield _gauge("headwater_drill_last_end_timestamp_seconds", "When the last recovery drill ended.", last.ended_ms / 1000)
        if last.passed_ms:
            yield _gauge("headwater_drill_last_pass_timestamp_seconds", "When a recovery drill last passed.", last.passed_ms / 1000)
        outcomes = ((each.name.lower(), each is last.outcome) for each in DrillOutcome)
        yield _labelled("headwater_drill_last_outcome", "1 for the outcome of the last recovery drill.", "outcome", outcomes)
        yield _gauge("headwater_drill_last_compared_bytes", "What the last recovery drill restored and compared.", last.size_bytes)

    def _cluster(self) -> Iterator[Metric]:
        tally = self._sources.snapshots()
        if tally is None:
            return
        yield CounterMetricFamily(
            "headwater_cluster_snapshots", "Snapshots of the cluster's metadata that this agent has archived.", tally.taken
        )
        yield CounterMetricFamily("headwater_cluster_snapshot_failures", "Attempts that failed in a way that does not pass.", tally.failed)
        if tally.newest is not None or tally.unarchived_s is not None:
            lag_s = self._sources.snapshot_lag_s()
            yield _gauge("headwater_cluster_snapshot_lag_seconds", "For how long its newest state has not been archived.", lag_s)
        if tally.newest is not None:
            yield _gauge("headwater_cluster_snapshot_number", "The newest one that this agent knows of.", tally.newest.number)
            taken_s = tally.newest.taken_ms / 1000
            yield _gauge("headwater_cluster_snapshot_timestamp_seconds", "When that was taken.", taken_s)
            yield _gauge("headwater_cluster_unknown_records", "Records in it that its writer does not know.", tally.newest.unknown)

    def _gateway(self) -> Iterator[Metric]:
        meter = self._sources.gateway
        yield _gauge("headwater_gateway_connections", "Connections of Kafka clients.", meter.connections)
        yield CounterMetricFamily("headwater_gateway_refused_connections", "Connections closed at once, as one too many.", meter.refused)
        yield CounterMetricFamily("headwater_gateway_malformed_requests", "Connections closed, as they were no Kafka.", meter.malformed)
        yield CounterMetricFamily(
            "headwater_gateway_idle_connections_closed", "Idle connections closed, to make room for another address.", meter.idle_closed
        )
        yield _gauge("headwater_gateway_unread_bytes", "Bytes of responses that clients have not taken yet.", meter.unread_bytes)
        yield CounterMetricFamily(
            "headwater_gateway_unread_responses_dropped", "Responses given up with their connections, unread.", meter.unread_dropped
        )
        seconds = HistogramMetricFamily("headwater_gateway_request_seconds", "From a request to its answer.", labels=("api",))
        for api, durations in meter.seconds.items():
            _add_durations(seconds, (api.name.lower(),), durations)
        yield seconds
        yield from _proxy(meter) if meter.passed or meter.upstream_failures else ()


def _proxy(meter: GatewayMeter) -> Iterator[Metric]:
    requests = CounterMetricFamily("headwater_proxy_requests", "Requests passed on to brokers.", labels=("api",))
    passed_bytes = CounterMetricFamily("headwater_proxy_bytes", "Bytes of them and of their responses.", labels=("api", "direction"))
    for api_key, passed in list(meter.passed.items()):
        name = OFFERED[api_key].name if api_key in OFFERED else "other"
        requests.add_metric((name,), passed.requests)
        passed_bytes.add_metric((name, "in"), passed.request_bytes)
        passed_bytes.add_metric((name, "out"), passed.response_bytes)
    added = HistogramMetricFamily("headwater_proxy_added_seconds", "What the proxy adds to a request and its response.")
    _add_durations(added, (), meter.added)
    refusals = CounterMetricFamily("headwater_proxy_refusals", "Partitions of which a client was told to ask again.", labels=("code",))
    for code, count in list(meter.refusals.items()):
        refusals.add_metric((code,), count)
    failures = CounterMetricFamily("headwater_proxy_upstream_failures", "Connections to brokers that were not had.", labels=("node_id",))
    for node_id, count in list(meter.upstream_failures.items()):
        failures.add_metric(("any" if node_id is None else str(node_id),), count)
    yield from (requests, passed_bytes, added, refusals, failures)
    yield _gauge(
        "headwater_proxy_unreachable_brokers",
        "Brokers to which the last connection was not had.",
        len(meter.upstream_failing.keys() - {None}),
    )
    yield CounterMetricFamily("headwater_proxy_archived_fetches", "Fetches with records of the archive.", meter.archived_fetches)
    yield CounterMetricFamily("headwater_proxy_archived_bytes", "Bytes of such records.", meter.archived_bytes)
    yield CounterMetricFamily("headwater_proxy_gaps", "Times that offsets were skipped which nobody has.", meter.gaps)
    yield CounterMetricFamily("headwater_proxy_hidden_requests", "Requests that clients were not offered.", meter.hidden)


def _ended_ms(operation: Operation) -> int:
    return operation.ended_ms or 0


def _kind(error: HeadwaterError | None) -> str:
    return next((name for name, kind in REASONS.items() if kind is not None and isinstance(error, kind)), "other")


def _gauge(name: str, words: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, words, value)


def _labelled(name: str, words: str, label: str, values: Iterable[tuple[str, float]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, words, labels=(label,))
    for each, value in values:
        family.add_metric((each,), float(value))
    return family


def _add_durations(family: HistogramMetricFamily, labels: tuple[str, ...], durations: Durations) -> None:
    """Bounds are inclusive and counts cumulative there."""
    counts, buckets, total = list(durations.counts), [], 0
    for bound, count in zip((*durations.bounds_s, float("inf")), counts, strict=True):
        total += count
        buckets.append(("+Inf" if bound == float("inf") else str(bound), total))
    family.add_metric(labels, buckets, durations.sum_s)
