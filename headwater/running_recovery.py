"""A recovery into a running cluster, as the command line has it: its brokers, what was placed, what was handed over."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.columns import Column
from headwater.output import emit, say
from headwater.units import parse_path
from headwater_core.errors import Partial, UsageError

if TYPE_CHECKING:
    from headwater.broker.running_admin import RunningKafkaAdmin
    from headwater.config import Config
    from recovery import RecoveryPlan, RecoveryReport
    from recovery.given_state import Handed
    from recovery.partition_swap import NamedLogDir, PlacedNode

PLACED = (
    Column("node_id", "broker", numeric=True),
    Column("partitions", "partitions", numeric=True),
    Column("log_dirs", "log directories"),
    Column("state", "state"),
)
HANDED = (
    Column("kind", "kind"),
    Column("what", "what", leaves=1),
    Column("value", "value"),
    Column("state", "state"),
    Column("why", "why", leaves=2),
)
_STATES = {"given": "given", "there": "there before", "stays": "the cluster's own stays", "failed": "not given"}


@contextmanager
def running_cluster(config: "Config", bootstrap_servers: str | None) -> "Iterator[RunningKafkaAdmin]":
    """Connected to the first broker that answers."""
    from headwater.broker.broker_connection import BrokerAddress
    from headwater.broker.client_properties import load_client_properties
    from headwater.broker.running_admin import RunningKafkaAdmin

    servers = config.log.bootstrap_servers if bootstrap_servers is None else tuple(filter(None, bootstrap_servers.split(",")))
    addresses = [BrokerAddress.parse(each) for each in servers]
    with RunningKafkaAdmin(addresses, load_client_properties(config.log.client_properties)) as cluster:
        yield cluster


def topic_creator(config: "Config", made: "RecoveryPlan", bootstrap_servers: str | None) -> "Callable[[RecoveryPlan], RecoveryPlan] | None":
    """Creates the topics of a plan in the running cluster when it is called; None for a plan of another kind."""
    if made.running is None:
        return None

    def create(plan: "RecoveryPlan") -> "RecoveryPlan":
        from recovery.topic_creation import with_created_topics

        with running_cluster(config, bootstrap_servers) as cluster:
            return with_created_topics(plan, cluster)

    return create


def named_log_dirs(given: Sequence[str]) -> "list[NamedLogDir]":
    """From DIR, or NODE=DIR. Raises UsageError."""
    from recovery.partition_swap import NamedLogDir

    found = []
    for each in given:
        match = re.fullmatch(r"(?:([0-9]{1,10})=)?(.+)", each, re.DOTALL)
        if match is None:
            raise UsageError("--log-dir DIR, or NODE=DIR")
        found.append(NamedLogDir(parse_path(match[2]), None if match[1] is None else int(match[1])))
    return found


def placed_rows(nodes: "Sequence[PlacedNode]") -> Iterator[dict[str, Any]]:
    for each in nodes:
        if each.finished_ms is not None:
            state = "placed before" if each.again else "placed"
        else:
            state = "prepared" if each.prepared_ms is not None and not each.log_dirs else "begun, not finished"
        yield {
            "node_id": each.node_id,
            "partitions": each.partitions,
            "log_dirs": ", ".join(each.log_dirs),
            "state": state,
            "finished_ms": each.finished_ms,
        }


def say_what_to_place(done: "RecoveryReport") -> None:
    """What comes after `apply`."""
    say(
        "next, one broker after the other, while the others serve: stop it, move what was recovered for it into its log directories, "
        "and start it again. What takes longest can be done before, while they run. To another host copy the mark, the plan and the "
        f"broker's directory, to the file system of the log directories:\n\n  headwater recover place --into {done.into}"
    )
    for each in done.brokers:
        rest = f"-a --include='/.headwater-recovery*' --include='/{each.directory}/***' --exclude='*' {Path(done.into).resolve()}/"
        say(f"  broker {each.node_id}:  rsync {rest} HOST:DIR/   (only to another host)")
        say(f"             headwater recover place --into {done.into} --log-dir {each.node_id}=LOG_DIR")
    say(f"\nthen:  headwater recover finish --into {done.into}")


def handed_rows(handed: "Sequence[Handed]") -> list[dict[str, Any]]:
    return [each._asdict() | {"state": _STATES[each.state]} for each in handed]


def say_handed(handed: "Sequence[Handed] | None", form: str, rows: list[dict[str, Any]]) -> None:
    """What `finish` has given beside settings; in a table of its own, or with `rows`."""
    found = handed_rows(handed or ())
    if form == "table" and found:
        emit(form, HANDED, found, title="\ngiven to the running cluster")
    rows += [] if form == "table" else found
    if handed is None:
        say("what the recovery has beside topics was given before: nothing was done")
    else:
        given = sum(each.state == "given" for each in handed)
        say(f"given to the running cluster: {given} of {len(handed)} offsets, ACLs, quotas and settings")


def check_handed(handed: "Sequence[Handed] | None") -> None:
    """Raises Partial when something was not given."""
    stays = sum(each.state == "stays" for each in handed or ())
    failed = sum(each.state == "failed" for each in handed or ())
    if stays or failed:
        raise Partial(
            f"left as the running cluster has it: {stays}; not given: {failed}"
            + (": run the same command again once what stands in the way is mended" if failed else "")
        )


def write_reassignment(into: Path, plan: "RecoveryPlan") -> None:
    """How to get the other replicas back: a file for Kafka's own tool."""
    from headwater_core.files import replace_file
    from recovery.given_state import reassignment
    from recovery.target import REASSIGNMENT

    wanted = reassignment(plan)
    if wanted is not None:
        replace_file(into / REASSIGNMENT, json.dumps(wanted, indent=1).encode() + b"\n")
        say(
            f"next: the recovered partitions have one replica each. {into / REASSIGNMENT} has the archived number: "
            f"kafka-reassign-partitions.sh --bootstrap-server HOST:PORT --reassignment-json-file {into / REASSIGNMENT} --execute"
        )
    elif len(plan.brokers) > 1 and plan.running is not None and not plan.running.grown:
        say(
            "next: the recovered partitions have one replica each, and how many they had is not known: grow them with "
            "kafka-reassign-partitions.sh, the present replica first"
        )
