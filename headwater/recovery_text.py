"""A recovery in words: what a plan would do and where it falls short, and what comes after it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.columns import Column, as_size
from headwater.output import emit, say
from headwater.units import duration_text, size_text
from headwater_core.clock import time_text
from headwater_core.counts import count_text
from headwater_core.errors import DiskFull, Partial, UsageError, VerificationFailed

if TYPE_CHECKING:
    from recovery import RecoveryPlan, RecoveryReport

RECOVERED = (
    Column("topic", "topic"),
    Column("partitions", "partitions", numeric=True),
    Column("segments", "segments", numeric=True, leaves=1),
    Column("records", "records", numeric=True),
    Column("size_bytes", "bytes", as_size, numeric=True),
)
PLANNED = (*RECOVERED, Column("first", "oldest record", leaves=2), Column("last", "newest record", leaves=2))
BROKERS = (
    Column("node_id", "broker", numeric=True),
    Column("rack", "rack"),
    Column("directory", "directory"),
    Column("leads", "leads", numeric=True),
    Column("replicas", "replicas", numeric=True),
    Column("size_bytes", "bytes", as_size, numeric=True),
)


def show_plan_table(made: "RecoveryPlan") -> None:
    from headwater.cut_view import CUT, cut_rows, cut_summary, rpo_summary

    emit("table", PLANNED, planned_rows(made))
    if made.brokers:
        emit("table", BROKERS, broker_rows(made), title="\nbrokers")
    if rows := list(cut_rows(made)):
        emit("table", CUT, rows, title="\ncut")
    for summary in filter(None, (cut_summary(made), rpo_summary(made))):
        say(summary)


def planned_rows(made: "RecoveryPlan") -> Iterator[dict[str, Any]]:
    from recovery.forecast import time_range

    for topic in made.topics:
        times = time_range(topic)
        yield {
            "topic": topic.topic,
            "topic_id": topic.topic_id,
            "partitions": len(topic.partitions),
            "segments": sum(len(partition.files) for partition in topic.partitions),
            "records": topic.records,
            "size_bytes": topic.size_bytes,
            "first": time_text(times.first_ms) if times else None,
            "last": time_text(times.last_ms) if times else None,
            "left_in_archive": sum(partition.left.records for partition in topic.partitions if partition.left),
        }


def broker_rows(made: "RecoveryPlan") -> Iterator[dict[str, Any]]:
    """bytes: that lie in its directory; those of its other replicas come over the network."""
    partitions = [partition for topic in made.topics for partition in topic.partitions]
    for broker in made.brokers:
        led = [each for each in partitions if each.replicas[0] == broker.node_id]
        yield {
            "node_id": broker.node_id,
            "rack": broker.rack,
            "directory": broker.directory,
            "leads": len(led),
            "replicas": sum(broker.node_id in each.replicas for each in partitions),
            "size_bytes": sum(each.size_bytes for each in led),
        }


def say_forecast(made: "RecoveryPlan") -> None:
    """Room, time, and which brokers start on it."""
    from recovery.initial_metadata import starting_on
    from recovery.restoration import WORKERS

    if (found := made.forecast) is not None:
        free = "" if found.free_bytes is None else f", {size_text(found.free_bytes)} are free"
        say(f"room: {size_text(found.needed_bytes)} are needed{free}" + ("" if found.has_room else ": NOT ENOUGH"))
        if found.seconds is not None and found.bytes_per_s is not None:
            rate = f"{size_text(round(found.bytes_per_s))}/s each, as just measured with one"
            say(f"time: about {duration_text(found.seconds)} to download and verify, {WORKERS} downloads at a time of {rate}")
    if made.running is None:
        say(f"brokers: Kafka {starting_on(made)} starts on it")


def conclude(made: "RecoveryPlan", into: Path | None) -> None:
    """Print notes and totals of a plan. Raises the error that applying it would end with."""
    for note in (*made.notes, *made.endings):
        say(f"note: {note}")
    say(
        f"{count_text(len(made.topics), 'topic')}, {count_text(made.records, 'record')}, {size_text(made.size_bytes)}"
        + (f", into {into}" if into else "")
    )
    if made.problems:
        _say_left_out(made.left_out)
        raise UsageError("the plan cannot be applied: " + "; ".join(made.problems))
    if made.holes:
        _say_left_out(made.left_out)
        listed = "".join(f"\n  {lost}" for lost in made.holes)
        raise VerificationFailed(
            f"missing or damaged: {count_text(len(made.holes), 'archived run')}; "
            f"`headwater recover apply --skip-damaged` continues without them:{listed}"
        )
    if (forecast := made.forecast) is not None and not forecast.has_room:
        _say_left_out(made.left_out)
        needed, free = size_text(forecast.needed_bytes), size_text(forecast.free_bytes or 0)
        raise DiskFull(f"{into} has no room for what would be recovered: {needed} are needed, {free} are free")
    check_complete(made.left_out, made.torn)


def _say_left_out(left_out: Sequence[str]) -> None:
    for each in left_out:
        say(f"left out: {each}")


def check_complete(left_out: Sequence[str], torn: Sequence[str] = ()) -> None:
    """Raises Partial unless everything comes back, and each transaction as a whole or not at all."""
    _say_left_out(left_out)
    for text in torn:
        say(text)
    reasons = [f"left out: {count_text(len(left_out), 'part')} of the archive; `headwater verify` shows what is wrong"] if left_out else []
    if torn:
        reasons.append(
            f"restored in part: {count_text(len(torn), 'transaction')}, because their partitions were archived at different moments: "
            "keep it so, or recover with --open-transactions cut, which ends every log before them"
        )
    if reasons:
        raise Partial("; ".join(reasons))


def say_what_next(done: "RecoveryReport") -> None:
    if done.running:
        from headwater.running_recovery import say_what_to_place

        say_what_to_place(done)
        return
    if done.brokers:
        _say_brokers(done)
    else:
        _say_broker(done)
    if done.taken_over:
        say(f"this bucket is the archive of the recovered cluster now, {done.cluster_id}: start its agents with it as before")
    elif done.cluster_id != done.source_cluster_id:
        say(
            f"next: this bucket remains the archive of cluster {done.source_cluster_id}. It refuses an agent of the recovered cluster, "
            f"{done.cluster_id}, with exit code 7. Give that agent another bucket. To continue in this bucket instead, recover with "
            f"--take-over, which keeps the old cluster out, or with --cluster-id {done.source_cluster_id}; then the old cluster must never "
            "start again"
        )


def _say_brokers(done: "RecoveryReport") -> None:
    from recovery.replica_placement import voters

    controllers = voters(done.brokers)
    quorum = ",".join(f"{each.node_id}@HOST{each.node_id}:PORT" for each in controllers)
    say(
        f"next: bring each directory to its host, and start Kafka {done.kafka} on all of them, without kafka-storage format, and with "
        f"these lines in server.properties:\n\n  controller.quorum.voters={quorum}\n"
    )
    for each in done.brokers:
        rack = "" if each.rack is None else f"  broker.rack={each.rack}\n"
        roles = "broker,controller" if each in controllers else "broker"
        directory = Path(done.into).resolve() / each.directory
        say(f"  process.roles={roles}\n  node.id={each.node_id}\n{rack}  log.dirs={directory}\n")


def _say_broker(done: "RecoveryReport") -> None:
    say(
        f"next: start Kafka {done.kafka} on it, without kafka-storage format, and with these lines in its server.properties:\n\n"
        f"  process.roles=broker,controller\n"
        f"  node.id={done.node_id}\n"
        f"  controller.quorum.voters={done.node_id}@HOST:PORT\n"
        f"  log.dirs={Path(done.into).resolve()}\n"
    )
