"""Which tier answers for an offset, and why, as `headwater explain TOPIC:P@OFFSET` says it without an agent."""

from typing import Any

import pytest

from headwater.commands.explain import _facts
from headwater.config import load
from headwater.inquiry import offset_rows
from headwater.offset_location import dated_text, explain_tier
from headwater.survey import Knowledge
from headwater_core.epochs import EpochHistory
from headwater_core.partition import TopicPartition
from hydration.config import ReadPriority
from hydration.scope import Scope, Span, Tier
from tests.headwater.conftest import Stage
from tests.manifests.builders import an_entry

PLACE = "orders.placed:0"
NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("answers", "priority", "offset", "why"),
    [
        (Tier.LOCAL, "local-only", 15, "local-only: no other tier is asked"),
        (Tier.LOCAL, "local-first", 15, "local-first, and it holds the offset"),
        (Tier.ARCHIVE, "offloaded-first", 15, "offloaded-first, and it holds the offset"),
        (Tier.ARCHIVE, "local-first", 5, "local-first, but the local log begins at offset 10"),
        (Tier.LOCAL, "offloaded-first", 25, "offloaded-first, but the archive ends before offset 20"),
        (Tier.LOCAL, "offloaded-first", 15, "offloaded-first, but the archive has a gap there"),
    ],
)
def test_why_a_tier_answers(answers: Tier, priority: str, offset: int, why: str) -> None:
    scope = Scope(
        local=Span(10, 30), archive=Span(0, 20), log_start=0, high_watermark=30, epochs=EpochHistory(), leader_epoch=-1, compacted=False
    )
    assert explain_tier(answers, ReadPriority(priority), scope, offset, {Tier.LOCAL: "", Tier.ARCHIVE: ""}) == why


def explained(stage: Stage, log: Any, priority: str) -> tuple[bool, str, str]:
    ran = stage.run("explain", f"{PLACE}@0", "-o", "jsonl", "--set", f"hydration.read_priority={priority}", log=log)
    assert ran.code == 0, ran.err
    row = ran.rows[0]
    return row["readable"], row["answers"], row["why"] + row["reason"]


def test_a_tier_that_cannot_be_read_is_named(stage: Stage) -> None:
    log = stage.log("pantry")
    assert stage.run("flush", log=log).code == 0
    assert explained(stage, log, "local-first") == (True, "local", "local-first, and it holds the offset")
    for index in (stage.bucket / "data").rglob("*.index"):
        index.write_bytes(b"?")
    readable, answers, why = explained(stage, log, "offloaded-first")
    assert (readable, answers) == (True, "local")
    assert why.startswith("offloaded-first, but the archive cannot be read: the object's index cannot be read")
    assert explained(stage, log, "offloaded-only")[:2] == (False, "")


def test_a_record_that_is_dated_ahead_is_named_with_what_it_counts_as() -> None:
    ahead = an_entry(0, 9, last_timestamp_ms=2**63 - 1, published_ms=0)
    assert dated_text(ahead, NOW_MS) == "up to 9223372036854775807, later than it was published: it counts as 1970-01-01T00:00:00Z"
    assert dated_text(an_entry(0, 9, published_ms=9000), NOW_MS) == dated_text(an_entry(0, 9, last_timestamp_ms=NOW_MS), NOW_MS) == ""


def test_the_group_that_a_release_waits_for_is_named(stage: Stage) -> None:
    log = stage.log("pantry")
    assert stage.run("flush", log=log).code == 0
    config = load(None, {}, {"store.url": f"file://{stage.bucket}", "log.dirs": [str(log)], "node.data_dir": str(stage.data_dir)})
    known = Knowledge(release_reason=lambda partition: f"group bills has not read {partition}")
    [row] = offset_rows(config, TopicPartition("orders.placed", 0), 0, known=known)
    assert {"what": "release", "is": f"group bills has not read {PLACE}"} in list(_facts(row))


def test_a_record_of_an_older_version_that_is_dated_later_than_now_is_named_with_what_retention_does() -> None:
    text = dated_text(an_entry(0, 9, last_timestamp_ms=NOW_MS + 1), NOW_MS)
    assert "later than now, in a run of an older version: retention keeps it" in text
