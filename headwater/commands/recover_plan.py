"""`headwater recover plan topic|cluster`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headwater.options import configured
from headwater.output import DocumentOutput, format_option
from headwater.recovery_options import cluster_request, into_option, topic_request
from headwater.recovery_text import conclude, say_forecast, show_plan_table

if TYPE_CHECKING:
    from headwater.config import Config
    from headwater.wiring import Bucket
    from recovery import RecoveryPlan


@click.group()
def plan() -> None:
    """Show what a recovery would do, and change nothing."""


@plan.command("topic")
@topic_request
@into_option
@format_option
@configured
def plan_topic(config: "Config", names: tuple[str, ...] | None, requested: dict[str, Any], into: Path | None, form: str) -> None:
    """Show what a recovery of topics would do.

    PATTERN has *, ? or [...]. NAME@TOPIC_ID is a topic that was deleted and created again, as it was before;
    `headwater topics list --all` lists the ids. With -o json the plan is a document for `headwater recover apply --plan FILE`.

    \b
    Example:
      headwater recover plan topic orders.placed refunds -o json
    """
    _show_plan(config, names, requested, into, form)


@plan.command("cluster")
@cluster_request
@into_option
@format_option
@configured
def plan_cluster(config: "Config", names: None, requested: dict[str, Any], into: Path | None, form: str) -> None:
    """Show what recovering a cluster would do.

    All topics, with users, ACLs, quotas, settings and feature levels of a snapshot of the cluster's metadata (`headwater cluster show`).

    \b
    Example:
      headwater recover plan cluster
    """
    _show_plan(config, names, requested, into, form)


def _show_plan(config: "Config", names: tuple[str, ...] | None, requested: dict[str, Any], into: Path | None, form: str) -> None:
    from headwater.wiring import open_bucket

    bucket = open_bucket(config)
    made = with_forecast(bucket, requested_plan(config, bucket, names, requested, thorough=True), into)
    if form == "table":
        show_plan_table(made)
    else:
        from recovery import write_plan

        output = DocumentOutput(on_one_line=form == "jsonl")
        write_plan(made, output)
        output.flush()
    say_forecast(made)
    conclude(made, into)


def requested_plan(
    config: "Config",
    bucket: "Bucket",
    names: tuple[str, ...] | None,
    requested: dict[str, Any],
    into: Path | None = None,
    *,
    thorough: bool = False,
) -> "RecoveryPlan":
    """into: where a recovery may have begun of which no other plan is the same by now; its own plan is carried out then"""
    import recovery
    from headwater.running_recovery import running_cluster

    manifests = bucket.manifests
    bootstrap_servers = requested["bootstrap_servers"]
    requested = {name: value for name, value in requested.items() if name != "bootstrap_servers"}
    if requested.get("cluster", "latest") != "latest":
        from headwater.cluster_view import snapshot_at

        requested = requested | {"cluster": str(snapshot_at(manifests, requested["cluster"]).number)}
    options = recovery.Options(**requested)
    begun = None if into is None else recovery.begun_plan(into, recovery.request_of(names, options))
    if begun is not None:
        return begun
    if not options.running:
        return recovery.plan(manifests, names, options, thorough=thorough)
    with running_cluster(config, bootstrap_servers) as cluster:
        return recovery.plan(manifests, names, options, running=cluster, thorough=thorough)


def with_forecast(bucket: "Bucket", made: "RecoveryPlan", into: Path | None) -> "RecoveryPlan":
    """With room and time, by a short download."""
    from msgspec.structs import replace

    from headwater_core.clock import SystemClock
    from recovery.forecast import estimate

    return replace(made, forecast=estimate(made, bucket.store, into, SystemClock()))
