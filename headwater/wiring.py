"""Opens what commands need by the configuration: the bucket, the log directories, the cache, the logs to read."""

import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import click
import structlog

from headwater.config import Config
from headwater.options import parse_selection
from headwater.output import say
from headwater_core.clock import SystemClock
from headwater_core.errors import DiskFull, NotFound, StoreGone, TransientError, Unauthorised, UsageError
from headwater_core.files import replace_file
from headwater_core.objectstore.guard import GuardedStore
from headwater_core.objectstore.probe import probe_store
from headwater_core.objectstore.silence import ReportsProgress, SilenceWatch
from headwater_core.objectstore.store import HoldsConnections, ObjectStore
from headwater_core.objectstore.store_meter import MeteredStore, StoreMeter
from headwater_core.objectstore.store_url import open_store
from headwater_core.partition import PartitionId
from headwater_core.segments.log_dirs import LogDirs
from headwater_core.threads import DaemonThreads
from manifests.head import Head
from manifests.repository import ManifestRepository
from manifests.topic import TopicManifest
from manifests.topic_survey import UnreadableTopic, survey_topics

if TYPE_CHECKING:
    from headwater.broker.broker_client import BrokerClient
    from hydration.cache.chunk_cache import ChunkCache
    from hydration.config import ReadPriority
    from hydration.logs import Logs


LISTING_WAIT_S = 2.0  # when an agent starts; readers retry
LOCAL_LISTING_WAIT_S = 15.0  # ten thousand partitions take seconds, and many times as long once archiving competes for the interpreter


@dataclass(frozen=True, slots=True)
class Bucket:
    """A store, and the manifests in it.

    meter  what the store's calls have cost
    """

    store: ObjectStore
    manifests: ManifestRepository
    meter: StoreMeter = field(default_factory=lambda: StoreMeter(SystemClock()))


def open_bucket(config: Config) -> Bucket:
    """The bucket, without any request yet. Raises UsageError for a wrong URL. Within a command, a store that does not answer is
    reported, and the connections are closed at the command's end.
    """
    store = open_store(config.store.url, endpoint_url=config.store.endpoint_url, region=config.store.region)
    verb = click.get_current_context(silent=True)
    is_agent = verb is not None and verb.info_name == "agent"
    report, over = (_log_silence, _log_answer) if is_agent else (say, say)
    watch = SilenceWatch(store.url, report, SystemClock(), over=over)
    if isinstance(store, ReportsProgress):
        store.progressed = watch.progressed
    if verb:
        watch.start()
        verb.call_on_close(watch.close)
        if isinstance(store, HoldsConnections):
            verb.call_on_close(store.close)
    meter = StoreMeter(SystemClock(), watch.silent_s)
    watched = GuardedStore(MeteredStore(store, meter), watch.calling)
    return Bucket(watched, ManifestRepository(watched), meter)


def _log_silence(line: str) -> None:
    structlog.get_logger().warning("store_silent", reason=line)


def _log_answer(line: str) -> None:
    structlog.get_logger().info("store_answered", reason=line)


def check_conditional_writes(config: Config, bucket: Bucket) -> None:
    """For archivers: raises UsageError when the store does not keep conditional writes, on which agents rely to share a bucket,
    unless the configuration says that this is the only agent; and where a topic may have chunks, whatever it says.
    """
    if not probe_store(bucket.store).many_agents:
        if config.may_write_chunks:
            raise UsageError(
                f"{bucket.store.url} does not keep conditional writes, and a request that comes late could overwrite an archived chunk: "
                'leave layout = "chunks" out, under [archival] and for each topic, or choose another store'
            )
        problem = f"{bucket.store.url} does not keep conditional writes: two agents could overwrite each other's commits"
        if not config.node.only_agent:
            raise UsageError(f"{problem}. Set node.only_agent = true if no other agent will ever write there")
        say(f"warning: {problem}; this must remain its only agent")


def open_log_dirs(config: Config) -> LogDirs:
    if not config.log.dirs:
        raise UsageError("a log directory is needed: log.dirs, or --log-dir DIR")
    static = None
    if config.log.server_properties is not None:
        from headwater.broker.client_properties import load_properties

        static = load_properties(config.log.server_properties, "log.server_properties")
    return LogDirs(config.log.dirs, metadata_dir=config.log.metadata_dir, owned=config.log.owned, static=static)


def open_broker(config: Config, dirs: LogDirs) -> "BrokerClient | None":
    """The broker beside us, without any request yet; None where none is named. Raises UsageError for unusable client properties."""
    if not config.log.bootstrap_servers:
        return None
    from headwater.broker.broker_client import BrokerClient
    from headwater.broker.broker_connection import BrokerAddress
    from headwater.broker.client_properties import load_client_properties

    properties = load_client_properties(config.log.client_properties)
    if properties.ignored or properties.other_lines:
        structlog.get_logger().warning(
            "client_properties_ignored",
            path=str(config.log.client_properties),
            keys=list(properties.ignored),
            other_lines=properties.other_lines,
        )
    addresses = [BrokerAddress.parse(each) for each in config.log.bootstrap_servers]
    return BrokerClient(addresses, properties, cluster_id=lambda: dirs.cluster_id, node_id=lambda: dirs.node_id, clock=SystemClock())


def requests_release(config: Config) -> bool:
    """Is what is archived of some topic to be deleted locally?"""
    return bool(config.archival.release) or any(rule.values.get("release") for rule in config.topics)


def writer_id(config: Config) -> str:
    """This agent's name in heads: the node's id and a random suffix, which is kept in the data directory.

    Two agents with one node id must not take each other's claims for their own. The caller holds the directory's lock. Raises
    DiskFull and UsageError.
    """
    path = config.node.data_dir / "writer"
    if path.exists():
        kept = path.read_text("ascii", "replace").strip()
        if kept.rpartition("-")[0] == config.node.id:
            return kept
    made = f"{config.node.id}-{secrets.token_hex(4)}"
    replace_file(path, f"{made}\n".encode("ascii"), UsageError)
    return made


def open_cache(config: Config) -> "ChunkCache":
    from hydration.cache.chunk_cache import ChunkCache

    return ChunkCache(cache_directory(config), config.hydration.cache_bytes, config.hydration.cache_ttl_s, SystemClock())


def cache_directory(config: Config) -> Path:
    return config.node.data_dir / "cache"


def archived(bucket: Bucket, selection: str | None, lost: list[UnreadableTopic]) -> Iterator[tuple[TopicManifest, PartitionId]]:
    """The partitions in the bucket that `selection` names, of current incarnations. Raises NotFound when there are none.

    lost  gets, before the first partition, the topics whose documents cannot be read
    """
    topic, partition = parse_selection(selection) if selection else (None, None)
    topics, unreadable = survey_topics(bucket.manifests.store, topic)
    lost += unreadable
    found = bool(unreadable)
    for manifest in topics:
        for each in bucket.manifests.partitions(manifest.topic, manifest.topic_id):
            if partition is None or each.partition == partition:
                found = True
                yield manifest, each
    if selection and not found:
        raise NotFound(f"{selection} is not in {bucket.store.url}")


def load_head(bucket: Bucket, partition: PartitionId) -> Head | None:
    held = bucket.manifests.load(partition)
    return held.head if held else None


@contextmanager
def open_logs(
    config: Config,
    bucket: Bucket,
    *,
    indexed: bool = False,
    patient: bool = False,
    priority_for: "Callable[[str], ReadPriority] | None" = None,
) -> Iterator["Logs"]:
    """The logs to read, listed once.

    priority_for  as hydration.logs takes it; None: by the configuration
    indexed  keep the manifest index, and what is known to be damaged, in the data directory, whose lock the caller holds; else in memory
    patient  continue without a listing if that takes long or fails now: topics are unknown until they are listed
    """
    from hydration import logs
    from manifests.index import ManifestIndex

    with ExitStack() as stack:
        index = None
        if indexed:
            try:
                index = stack.enter_context(closing(ManifestIndex(config.node.data_dir / "index")))
            except DiskFull as error:
                structlog.get_logger().warning("index_in_memory", reason=str(error))
        opened = logs.open_logs(
            config.hydration,
            store=bucket.store,
            cache_directory=cache_directory(config),
            dirs=open_log_dirs(config) if config.log.dirs else None,
            index=index,
            priority_for=priority_for or (lambda topic: config.hydration_for(topic).read_priority),
            damage_path=config.node.data_dir / "damage.json" if indexed else None,
        )
        stack.callback(opened.close)
        if patient:
            _refresh_patiently(opened)
        else:
            opened.refresh()
        yield opened


def _refresh_patiently(logs: "Logs") -> None:
    threads = DaemonThreads(1, "first-listing")
    listing = threads.submit(logs.refresh)
    threads.shutdown(wait=False)
    until_s, done = monotonic() + LOCAL_LISTING_WAIT_S, wait((listing,), LISTING_WAIT_S).done
    while not done and not logs.has_listed_dirs and monotonic() < until_s:
        done = wait((listing,), 0.1).done
    if not done:
        return
    try:
        listing.result()
    except (TransientError, Unauthorised, StoreGone) as error:
        structlog.get_logger().warning("store_unavailable", reason=str(error), consequence="what it holds is unknown until it answers")
