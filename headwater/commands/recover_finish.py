"""`headwater recover finish` and `status`: what a recovery still holds back, and putting it back."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headwater.columns import Column, as_size
from headwater.options import LocalPath, configured
from headwater.output import emit, format_option, say
from headwater_core.counts import count_text
from headwater_core.errors import NotFound, Partial, UsageError, VerificationFailed

if TYPE_CHECKING:
    from headwater.config import Config
    from recovery import RecoveryStatus
    from recovery.partition_swap import PlacedNode


@click.command()
@click.option("--into", type=LocalPath(), metavar="DIR", help="The log directory of the recovery.")
@click.option(
    "--bootstrap-servers", metavar="HOST:PORT[,HOST:PORT]", help="Brokers of the recovered cluster.  [default: log.bootstrap_servers]"
)
@click.option(
    "--unchecked", is_flag=True, help="Put it back although logs or groups are not as they were recovered; pass over deleted topics."
)
@click.option(
    "--unchecked-groups", is_flag=True, help="Compare logs alone: groups were deleted or reset on purpose, or cannot be compared any more."
)
@format_option
@configured
def finish(config: "Config", into: Path | None, bootstrap_servers: str | None, unchecked: bool, unchecked_groups: bool, form: str) -> None:
    """Put back the retention that a recovery held back.

    For the running recovered cluster. After a recovery with --running it also gives the cluster committed offsets, start offsets of share
    groups and, where the whole cluster was recovered, ACLs, quotas and settings, each where it has nothing of the kind; what it has stays,
    and is listed.

    The logs of a topic must begin and end as they were recovered, and groups must have at least what they had committed of it, by the
    archive, else it waits; the other topics do not wait for it. A commit that is gone and may have expired (offsets.retention.minutes after
    `apply` began), and a share group that is not known, are notes: nothing waits for them. A setting that was changed since stays. Connects
    as log.client_properties says. May be repeated.
    The bucket records it: until then a recovery of the recovered cluster holds the same settings back.

    \b
    Example:
      headwater recover finish --into recovered --bootstrap-servers localhost:9092

    \b
    Exit codes:
      0  what was held back is put back
      3  some topics are not as they were recovered, nothing was put back there;
         or not everything was given to the running cluster
      4  not one topic is as it was recovered; nothing was put back
      7  the brokers are of another cluster
    """
    import recovery
    from headwater.running_recovery import check_handed, running_cluster, say_handed, write_reassignment
    from headwater.wiring import open_bucket
    from headwater_core.clock import SystemClock

    if into is None:
        raise UsageError("--into DIR is needed")
    running = recovery.running_plan(into)
    with running_cluster(config, bootstrap_servers) as cluster:
        handed = None if running is None else recovery.hand_over(into, cluster, SystemClock(), checked=not unchecked)
        store = open_bucket(config).store
        done = recovery.finish(into, cluster, SystemClock(), checked=not unchecked, groups_checked=not unchecked_groups, store=store)
    columns = (Column("topic", "topic"), Column("name", "setting"), Column("value", "value"), Column("state", "state"))
    states = (("put back", done.put_back), ("changed since, stays", done.changed), ("held back", done.left))
    rows = [{"topic": each.topic, "name": each.name, "value": each.value, "state": state} for state, some in states for each in some]
    shown = rows
    if running is not None:
        say_handed(handed, form, shown)
    emit(form, columns, shown)
    if done.left:
        say("note: settings of remote storage are held back: give them to the topics yourself once brokers have a remote tier")
    say(f"put back: {count_text(len(done.put_back), 'setting')}" + (", before this run: nothing was done" if done.again else ""))
    if done.unreported:
        say(f"note: the bucket does not record it, run the same command again: {done.unreported}")
    for note in done.notes:
        say(f"note: {note}")
    if done.notes:
        say("note: without an offset a group begins by its reset policy; kafka-consumer-groups.sh or kafka-share-groups.sh sets one")
    for why in done.unlike.values():
        say(f"{'passed over' if unchecked else 'not put back'}: {why}")
    if done.unlike and not unchecked:
        raise Partial(
            f"not as recovered: {count_text(len(done.unlike), 'topic')}; nothing was put back there; "
            "--unchecked-groups compares logs alone, --unchecked does it all the same"
        )
    if running is not None:
        write_reassignment(into, running)
        check_handed(handed)


@click.command()
@click.option("--into", type=LocalPath(), metavar="DIR", help="The log directory of the recovery.")
@format_option
def status(into: Path | None, form: str) -> None:
    """Show the progress of a recovery.

    And which settings it holds back, until `headwater recover finish`.

    \b
    Example:
      headwater recover status --into recovered
    """
    import msgspec

    import recovery

    if into is None:
        raise UsageError("--into DIR is needed")
    found = recovery.status(into)
    if found is None:
        raise NotFound(f"no recovery was started in {into}")
    state = "damaged" if found.problem else "unfinished" if found.finished_ms is None else "finished"
    held = recovery.held_of(into)
    placed = recovery.placed_in(into)
    row = msgspec.to_builtins(found) | {"state": state, "held": msgspec.to_builtins(held), "held_settings": len(held)}
    row |= {"placed": msgspec.to_builtins(placed)}
    columns = (
        Column("recovery_id", "recovery"),
        Column("state", "state"),
        Column("files_placed", "files placed", numeric=True),
        Column("files", "files", numeric=True),
        Column("bytes_placed", "bytes placed", as_size, numeric=True),
        Column("size_bytes", "bytes", as_size, numeric=True),
        Column("held_settings", "held back", numeric=True),
    )
    emit(form, columns, [row])
    if form == "table":
        for each in held:
            say(f"held back: {each.topic} {each.name}, {_held_text(each.value)}; it has {_held_text(each.recovered)}")
        _say_placed(found, placed)
    if found.problem:
        raise VerificationFailed(found.problem)


def _say_placed(found: "RecoveryStatus", placed: "Sequence[PlacedNode]") -> None:
    """What of a recovery into a running cluster is left to do, as far as this directory knows."""
    from headwater.running_recovery import placed_rows

    known = {each.node_id for each in placed}
    for row in placed_rows(placed):
        say(f"broker {row['node_id']}: {count_text(row['partitions'], 'partition')}, {row['state']}, in {row['log_dirs']}")
    for node_id in found.brokers if found.running else ():
        if node_id not in known:
            say(f"broker {node_id}: not placed, or from a copy of this directory; `headwater recover place` does it")
    if found.running and found.handed_over_ms is None:
        say("offsets, ACLs, quotas and settings: not given to the cluster, or not all of them; `headwater recover finish` does it")


def _held_text(value: str | None) -> str:
    return "none" if value is None else value
