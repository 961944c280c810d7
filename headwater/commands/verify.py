"""`headwater verify`: scrub the archive against its manifests, from one machine."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from headwater.options import configured, parse_selection, selection_argument
from headwater.output import Column, emit, format_option, progress, say
from headwater.units import size_text
from model.errors import (
    CorruptData,
    HeadwaterError,
    NotFound,
    NothingExamined,
    Partial,
    TransientError,
    Unauthorised,
    UnsupportedFormat,
    VerificationFailed,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwater.config import Config
    from headwater.opening import Bucket
    from headwater.scrub import Finding
    from manifests.head import Head
    from model.partition import PartitionId


@click.command()
@selection_argument
@click.option("--data", is_flag=True, help="Read every byte: each batch's CRC, the offsets, the digest of each object.")
@format_option
@configured
def verify(config: "Config", selection: str | None, data: bool, form: str) -> None:
    """Check the archive against its manifests: is every object there, whole, and what the manifest says?

    Prints what is wrong: what is damaged or gone, and each partition of an archived topic without a manifest, for a recovery would
    come back without it. Exit code 0: all is well; 4: such damage was found; 3: no damage, but something could not be examined; 10:
    there was nothing to examine.
    """
    from headwater.opening import open_bucket
    from headwater.scrub import scrub

    bucket = open_bucket(config)
    findings: list[Finding] = []
    heads: list[Head] = []
    for partition in _listed(bucket, selection, findings):
        _load(bucket, partition, heads, findings)
    examined = read_bytes = 0
    with progress("verifying", sum(entry.size_bytes for head in heads for entry in (*head.entries, *head.superseded))) as shown:
        for head in heads:
            for each in scrub(bucket.store, head, data=data, progressed=shown.advance):
                examined += 1
                read_bytes += each.size_bytes
                if each.finding:
                    findings.append(each.finding)
    columns = (
        Column("topic", "topic"),
        Column("partition", "partition", numeric=True),
        Column("key", "object"),
        Column("problem", "problem"),
    )
    if findings or form != "table":
        emit(form, columns, map(asdict, findings))
    say(f"examined {examined} objects of {len(heads)} partitions" + (f", read {size_text(read_bytes)}" if data else ""))
    damaged = sum(finding.damage for finding in findings)
    if damaged:
        raise VerificationFailed(f"{damaged} of what was examined is damaged")
    if findings:
        raise Partial(f"{len(findings)} could not be examined")
    if not examined:
        raise NothingExamined(f"there is nothing to examine in {bucket.store.url}")


def _listed(bucket: "Bucket", selection: str | None, findings: "list[Finding]") -> "Iterator[PartitionId]":
    """The partitions that are there to be examined; those that should be and are not become findings, as do their topics."""
    from headwater.scrub import Finding, missing

    topic, number = parse_selection(selection) if selection else (None, None)
    lost = [each for each in bucket.manifests.lost() if topic in (None, each.topic)]
    findings += (Finding(topic=each.topic, partition=None, key=each.key, problem=each.problem) for each in lost)
    try:
        manifests = bucket.manifests.topics() if topic is None else [bucket.manifests.resolve(topic)]
    except NotFound:
        if not lost:
            raise
        manifests = []
    for manifest in manifests:
        listed = bucket.manifests.partitions(manifest.topic, manifest.topic_id)
        numbers = {partition.partition for partition in listed}
        if number is not None and number not in numbers and number >= manifest.partitions:
            raise NotFound(f"{selection} is not in {bucket.store.url}")
        findings += missing(manifest, numbers, number)
        yield from (partition for partition in listed if number in (None, partition.partition))


def _load(bucket: "Bucket", partition: "PartitionId", heads: "list[Head]", findings: "list[Finding]") -> None:
    from headwater.opening import load_head
    from headwater.scrub import Finding
    from manifests import keys

    def found(problem: str, *, damage: bool) -> None:
        findings.append(
            Finding(topic=partition.topic, partition=partition.partition, key=keys.head(partition), problem=problem, damage=damage)
        )

    try:
        head = load_head(bucket, partition)
        if head is None:
            found("listed, and gone", damage=True)
        else:
            heads.append(head)
    except (CorruptData, NotFound) as error:
        found(str(error), damage=True)
    except (TransientError, Unauthorised, UnsupportedFormat) as error:
        found(str(error), damage=False)
    except HeadwaterError as error:
        found(str(error), damage=True)
