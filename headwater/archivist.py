"""What holds a data directory while it archives: lock, control node, bucket, archivers. One-shot passes and the agent share it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import structlog

from archival.config import ArchivalConfig
from archival.plan import Policy
from control.lock import DataDirLock
from control.log import PUBLISH_TIMEOUT_S
from control.node import ControlNode
from control.rebuild import rebuild_if_needed
from headwater import agent_socket
from headwater.archiving import Archived, Archiving
from headwater.config import Config
from headwater.opening import Bucket, open_bucket_to_write, open_log_dirs, writer_id
from headwater.options import parse_selection
from model.clock import SystemClock
from model.errors import HeadwaterError, Locked, NotFound, Partial, TransientError
from model.partition import TopicPartition

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One pass, as a one-shot verb asks for it.

    tail_older_than_s  archive committed tails that have waited so long, too; None: sealed segments only
    before             only what lies wholly below this offset
    """

    selection: str | None = None
    tail_older_than_s: float | None = None
    before: int | None = None

    def policy(self, settings: ArchivalConfig) -> Policy:
        tail_ms = None if self.tail_older_than_s is None else int(self.tail_older_than_s * 1000)
        return replace(Policy.of(settings), tail_after_ms=tail_ms, before=self.before)

    def wants(self, place: TopicPartition) -> bool:
        if self.selection is None:
            return True
        topic, partition = parse_selection(self.selection)
        return place.topic == topic and partition in (None, place.partition)


@dataclass(frozen=True, slots=True)
class Held:
    """What is open while the lock is held. archiving: None without log directories."""

    config: Config
    bucket: Bucket
    control: ControlNode
    archiving: Archiving | None


@contextmanager
def holding(config: Config) -> Iterator[Held]:
    """Take the data directory and open everything an archiver needs. Raises Locked when another process has it."""
    with ExitStack() as stack:
        stack.enter_context(DataDirLock(config.node.data_dir))
        dirs = open_log_dirs(config) if config.log.dirs else None
        if dirs is not None:
            listing = dirs.listing()  # says at once what is wrong with the directories as a whole
            if not listing.unread and dirs.metadata() is None and not config.log.owned:
                log.warning(
                    "leadership_unknown",
                    reason="no log directory holds the broker's metadata log: the agents of all its replicas archive each partition in "
                    "turn. Set log.metadata_dir to the broker's metadata.log.dir",
                )
        bucket = open_bucket_to_write(config)
        control = stack.enter_context(ControlNode(config.node.data_dir, config.control))
        if not control.ready(PUBLISH_TIMEOUT_S):
            raise TransientError("the control log has no leader yet; are its peers running?")
        rebuild_if_needed(bucket.manifests, control)
        archiving = (
            Archiving(config, dirs=dirs, bucket=bucket, control=control, writer=writer_id(config), clock=SystemClock())
            if dirs is not None
            else None
        )
        if archiving is not None:
            archiving.announcer.start()
            stack.callback(archiving.announcer.close)
        yield Held(config, bucket, control, archiving)


def carry_out(config: Config, order: Order, told: Callable[[dict[str, Any]], None]) -> None:
    """One pass here, or by the agent that holds the data directory; `told` of each partition as it is done.

    Raises Partial when some partitions could not be archived, their error when none could.
    """
    open_log_dirs(config)
    try:
        with holding(config) as held:
            assert held.archiving is not None
            for row in pass_rows(held.archiving, order):
                told(row)
    except Locked:
        arguments = {"selection": order.selection, "tail_older_than_s": order.tail_older_than_s, "before": order.before}
        try:
            for row in agent_socket.ask(config.node.data_dir, agent_socket.Ask("archive", arguments)):
                told(row)
        except agent_socket.NoAgent:
            pass
        else:
            return
        raise


def pass_rows(archiving: Archiving, order: Order, stop: threading.Event | None = None) -> Iterator[dict[str, Any]]:
    """Rows of one pass; its end raises what the pass as a whole came to. Setting `stop` ends it soon, as a temporary failure."""
    failed: list[Archived] = []
    looked_at = 0
    for outcome in archiving.run(order.policy, wanted=order.wants, stop=stop):
        looked_at += 1
        if outcome.error:
            failed.append(outcome)
        yield row(outcome)
    if stop is not None and stop.is_set():
        raise TransientError("the pass was stopped before its end; the next one goes on")
    if order.selection and not looked_at:
        raise NotFound(f"{order.selection} is in none of the log directories")
    if failed:
        raise _summary(failed, looked_at)


def row(outcome: Archived) -> dict[str, Any]:
    return {
        "topic": outcome.place.topic,
        "partition": outcome.place.partition,
        "objects": outcome.objects,
        "archived_bytes": outcome.archived_bytes,
        "released_bytes": outcome.released_bytes,
        "last_offset": outcome.last_offset,
        "elapsed_s": outcome.elapsed_s,
        "reason": outcome.reason,
        "error": str(outcome.error) if outcome.error else None,
    }


def _summary(failed: list[Archived], looked_at: int) -> HeadwaterError:
    first = failed[0]
    assert first.error is not None
    if len(failed) == looked_at and len({type(each.error) for each in failed}) == 1:
        return first.error
    return Partial(f"{len(failed)} of {looked_at} partitions could not be archived; {first.place}: {first.error}")
