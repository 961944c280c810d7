"""Where all partitions stand: the local logs, the bucket and what a running agent knows, put side by side."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from archival.plan import Policy, PolicyFor
from archival.tails import Tails
from headwater import agent_socket
from headwater.config import Config
from headwater.opening import Bucket, archived, load_head, open_bucket, open_cache, open_log_dirs
from headwater.options import parse_selection
from headwater.output import say
from headwater.standing import Standing, standing
from hydration.cache import folder
from manifests.repository import Lost
from model.clock import SystemClock
from model.errors import CorruptData, ForeignOwner, HeadwaterError, NotFound, Partial, TransientError, Unauthorised, UnsupportedFormat
from model.partition import PartitionId, TopicPartition
from segments.discover import parse_directory_name
from segments.log import LocalLog


def survey(config: Config, selection: str | None, policy_for: PolicyFor = Policy.of) -> Iterator[Standing]:
    """One Standing per partition that is local, archived, or both, by topic and number.

    Raises NotFound when there is none; what keeps the bucket from being asked, after everything which is known without it; and
    Partial, after everything else, when the bucket does not tell the partitions of some topic.

    policy_for  what a pass may archive of a topic with these settings
    """
    topic, number = parse_selection(selection) if selection else (None, None)

    def wanted(place: TopicPartition) -> bool:
        return topic in (None, place.topic) and number in (None, place.partition)

    local: dict[PartitionId, LocalLog] = {}
    unreadable: dict[TopicPartition, str] = {}
    if config.log.dirs:
        look = open_log_dirs(config).survey()
        local = {log.partition: log for log in look.logs if wanted(log.partition.topic_partition)}
        for path, error in look.problems:
            place = parse_directory_name(path.name)
            if place is None:
                raise error
            if wanted(place):
                unreadable[place] = str(error)
    bucket = _bucket(config)
    everywhere = set(local)
    unreachable: HeadwaterError | None = None
    lost: list[Lost] = []
    if bucket is not None:
        try:
            everywhere |= {partition for _, partition in archived(bucket, selection, lost)}
        except NotFound:
            pass
        except (TransientError, Unauthorised) as error:
            unreachable = error
            if not everywhere and not unreadable:
                raise
    if not everywhere and not unreadable:
        for each in lost:
            raise each.error
        raise NotFound(f"{selection or 'no partition'} is neither in a log directory nor in {config.store.url}")
    tails = Tails(config.node.data_dir / "tails.json", SystemClock())
    troubles = _troubles(config)
    damaged = {each.topic: str(each.error) for each in lost}
    cached = _cached(config)
    now_ms = SystemClock().now_ms()
    for partition in sorted(everywhere, key=lambda each: (each.topic, each.partition, each not in local)):
        place = partition.topic_partition
        head, damage = None, ""
        try:
            head = load_head(bucket, partition) if bucket and not unreachable else None
        except (TransientError, Unauthorised) as error:
            unreachable = error  # and not asked again: each partition would wait for its own time-out
        except (CorruptData, ForeignOwner, UnsupportedFormat) as error:
            damage = str(error)
        found = standing(
            partition,
            local.get(partition),
            head,
            policy=policy_for(config.archival_for(partition.topic)),
            tail_age_ms=tails.age_ms(partition, head.next_offset) if head else 0,
            now_ms=now_ms,
            cached_bytes=cached.get(folder(partition), 0),
            trouble=damage or unreadable.pop(place, "") or damaged.get(place.topic, "") or troubles.get(place, ""),
        )
        if unreachable:
            found = replace(found, lag_bytes=None, lag_s=None, state="unknown", reason=f"the bucket cannot be asked: {unreachable}")
        yield found
    for place, problem in sorted(unreadable.items()):
        yield replace(_NOTHING, topic=place.topic, partition=place.partition, reason=problem)
    if unreachable:
        raise unreachable
    if lost:
        raise Partial("of these topics the archive does not tell all: " + "; ".join(f"{topic}: {why}" for topic, why in damaged.items()))


_NOTHING = Standing(
    topic="",
    partition=0,
    topic_id="",
    archive_start=None,
    local_start=None,
    last_offset=None,
    high_watermark=None,
    lag_bytes=None,
    lag_s=None,
    archived_bytes=0,
    objects=0,
    cached_bytes=0,
    state="stopped",
    reason="",
)


def _bucket(config: Config) -> Bucket | None:
    """None while the first pass has not made the archive's directory: then nothing is archived."""
    if config.log.dirs and config.store.url.startswith("file:"):
        path = Path(unquote(urlsplit(config.store.url).path))
        if not path.exists():
            say(f"nothing is archived yet: there is no {path}")
            return None
    return open_bucket(config)


def _troubles(config: Config) -> dict[TopicPartition, str]:
    """What stops the running agent, by partition; nothing when there is none to ask."""
    try:
        rows = list(agent_socket.ask(config.node.data_dir, agent_socket.Ask("troubles"), timeout_s=5))
        return {TopicPartition(row["topic"], row["partition"]): row["trouble"] for row in rows}
    except (HeadwaterError, KeyError, TypeError):
        return {}


def _cached(config: Config) -> dict[str, int]:
    sizes: dict[str, int] = {}
    cache = open_cache(config)
    for file in cache.show():
        directory = file.name.partition("/")[0]
        sizes[directory] = sizes.get(directory, 0) + file.size_bytes
    cache.close()
    return sizes
