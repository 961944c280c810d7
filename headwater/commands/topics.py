"""`headwater topics list|show`."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from headwater.options import configured
from headwater.output import Column, as_size, emit, format_option

if TYPE_CHECKING:
    from headwater.config import Config
    from headwater.opening import Bucket


@click.group()
def topics() -> None:
    """List and show archived topics."""


@topics.command("list")
@format_option
@configured
def list_(config: "Config", form: str) -> None:
    """Every topic in the bucket: its current incarnation, partitions, objects and bytes."""
    from headwater.opening import open_bucket

    columns = (
        Column("topic", "topic"),
        Column("topic_id", "topic id"),
        Column("partitions", "partitions", numeric=True),
        Column("objects", "objects", numeric=True),
        Column("archived_bytes", "archived", as_size, numeric=True),
    )
    emit(form, columns, _topics(open_bucket(config)))


def _topics(bucket: "Bucket") -> Iterator[dict[str, Any]]:
    for manifest in bucket.manifests.topics():
        rows = list(_partitions(bucket, manifest.topic))
        yield {
            "topic": manifest.topic,
            "topic_id": manifest.topic_id,
            "cluster_id": manifest.cluster_id,
            "partitions": manifest.partitions,
            "objects": sum(row["objects"] for row in rows),
            "archived_bytes": sum(row["archived_bytes"] for row in rows),
        }


@topics.command()
@click.argument("topic")
@format_option
@configured
def show(config: "Config", topic: str, form: str) -> None:
    """Each partition of TOPIC: offsets, objects, bytes, and who may write it."""
    from headwater.opening import open_bucket

    columns = (
        Column("topic", "topic"),
        Column("partition", "partition", numeric=True),
        Column("start_offset", "archive start", numeric=True),
        Column("last_offset", "last offset", numeric=True),
        Column("objects", "objects", numeric=True),
        Column("superseded", "superseded", numeric=True),
        Column("archived_bytes", "archived", as_size, numeric=True),
        Column("fence", "fence", numeric=True),
        Column("writer", "writer"),
    )
    emit(form, columns, _partitions(open_bucket(config), topic))


def _partitions(bucket: "Bucket", topic: str) -> Iterator[dict[str, Any]]:
    from headwater.opening import archived, load_head

    for _, partition in archived(bucket, topic):
        head = load_head(bucket, partition)
        if head is not None:
            live = [entry for entry in head.entries if not entry.gap]
            yield asdict(partition) | {
                "start_offset": head.start_offset,
                "last_offset": head.last_offset,
                "leader_epoch": head.leader_epoch,
                "manifest_version": head.version,
                "objects": len(live),
                "gaps": len(head.entries) - len(live),
                "superseded": len(head.superseded),
                "archived_bytes": sum(entry.live_bytes for entry in live),
                "fence": head.fence,
                "writer": head.writer,
            }
