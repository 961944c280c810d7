"""`headwater topics pending`: what streaming offload is writing, and what it has left."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from headwater.columns import Column, as_size
from headwater.commands.gc import collect, confirm, yes_option
from headwater.options import configured, selection_argument
from headwater.output import emit, format_option, say
from headwater_core.counts import count_text
from headwater_core.errors import CorruptData, ForeignOwner, NotFound, Partial, UnsupportedFormat

if TYPE_CHECKING:
    from headwater.config import Config
    from headwater.wiring import Bucket
    from headwater_core.partition import PartitionId
    from manifests.head import Head

COLUMNS = (
    Column("topic", "topic"),
    Column("partition", "partition", numeric=True),
    Column("status", "status"),
    Column("base_offset", "from offset", numeric=True),
    Column("fence", "fence", numeric=True, leaves=2),
    Column("objects", "objects", numeric=True),
    Column("size_bytes", "size", as_size, numeric=True),
    Column("uid", "uid", leaves=1),
)


@click.command()
@selection_argument
@click.option("--remove", is_flag=True, help="Also collect what is left, as `headwater gc` does.")
@yes_option
@format_option
@configured
def pending(config: "Config", selection: str | None, remove: bool, yes: bool, form: str) -> None:
    """List what streaming offload has not finished.

    assigned is being written, or will be: an object, or with layout = "chunks" a segment, whose chunks so far are counted; failed is
    written again under another name; left is an object that is in the bucket and nothing lists. Nothing of all that is part of the
    archive. Chunks that are left are not shown: their names do not say of which topic they are, if several had the same name.
    With --remove all of it, chunks too, is deleted once nothing has referred to it for archival.reader_lease (24 h).

    \b
    Example:
      headwater topics pending orders.placed

    \b
    Exit codes:
      0  all is listed
      3  some manifests cannot be read, or not everything could be collected;
         stderr names them, and the others are done
    """
    from headwater.wiring import open_bucket

    problems: list[str] = []
    emit(form, COLUMNS, _rows(open_bucket(config), selection, problems))
    for each in problems:
        say(f"not shown: {each}")
    if remove:
        from headwater.collection import CollectionRequest

        confirm("this deletes objects that nothing refers to, and applies the archive's retention", selection or "everything", yes)
        collect(config, CollectionRequest(selection=selection), form)
    if problems:
        raise Partial(f"{count_text(len(problems), 'manifest')} in the archive cannot be read; `headwater verify` shows what is wrong")


def _rows(bucket: "Bucket", selection: str | None, problems: list[str]) -> Iterator[dict[str, Any]]:
    from headwater.options import parse_selection
    from headwater.wiring import load_head
    from manifests.head import may_have_streams

    topic, number = parse_selection(selection) if selection else (None, None)
    for each in bucket.manifests.incarnations(topic):
        try:
            partitions = bucket.manifests.partitions(each.topic, each.topic_id)
        except (CorruptData, ForeignOwner, NotFound, UnsupportedFormat) as error:
            problems.append(f"{each.topic}@{each.topic_id}: {error}")
            continue
        for partition in partitions:
            if number not in (None, partition.partition):
                continue
            try:
                head = load_head(bucket, partition)
                rows = list(_rows_of(bucket, partition, head)) if head is not None and may_have_streams(head) else []  # reads its pages
            except (CorruptData, ForeignOwner, UnsupportedFormat) as error:
                problems.append(f"{partition}: {error}")
                continue
            yield from rows


def _rows_of(bucket: "Bucket", partition: "PartitionId", head: "Head") -> Iterator[dict[str, Any]]:
    from manifests import chunk_keys, keys
    from manifests.head import may_have_chunks

    stored: dict[str, list[int]] = {}
    fences: dict[str, int] = {}
    for info in bucket.store.list(keys.stream_prefix(partition)):
        if (name := keys.parse_object(info.key)) is not None:
            stored.setdefault(name.uid, []).append(info.size_bytes)
            fences[name.uid] = name.fence
    pending = {each.uid for each in head.pending}
    if may_have_chunks(head):  # of what is left there no key says whose it is
        for info, chunk in chunk_keys.stored_chunks(bucket.store, partition.topic_partition):
            if (uid := chunk_keys.segment_uid(chunk.place)) in pending:
                stored.setdefault(uid, []).append(info.size_bytes)
    place = {"topic": partition.topic, "topic_id": partition.topic_id, "partition": partition.partition}
    for each in head.pending:
        sizes = stored.pop(each.uid, [])
        facts = {"status": each.status, "base_offset": each.base_offset, "fence": each.fence, "layout": each.layout}
        times = {"assigned_ms": each.assigned_ms, "failed_ms": each.failed_ms}
        yield place | facts | times | {"objects": len(sizes), "size_bytes": sum(sizes), "uid": each.uid}
    listed = {entry.uid for entry in (*head.entries, *head.superseded)}
    for uid, sizes in sorted(stored.items()):
        if uid not in listed:
            facts = {"status": "left", "base_offset": None, "fence": fences[uid], "layout": "streaming"}
            yield place | facts | {"assigned_ms": 0, "failed_ms": None, "objects": len(sizes), "size_bytes": sum(sizes), "uid": uid}
