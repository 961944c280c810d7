"""`headwater read` where a bound is a time, and records have times that are not true."""

from pathlib import Path

import msgspec
from structlog.testing import capture_logs

from headwater.commands.read import _offset
from headwater.units import parse_time_ms
from headwater_core.objectstore.directory import DirectoryStore
from tests.headwater.conftest import Stage
from tests.headwater_core.segments.builders import a_batch, a_record
from tests.hydration.world import Archive, World, a_topic

BEGIN, END = "2026-01-31T12:00:00Z", "2026-01-31T13:00:00Z"
BEGIN_MS, END_MS = parse_time_ms(BEGIN), parse_time_ms(END)
FAR_MS = 1000 * BEGIN_MS  # of a producer that sends microseconds


def minutes(count: int = 100) -> bytes:
    """A record each minute from BEGIN on; those at offsets 3 and 4 are dated far ahead."""
    return a_batch(0, [a_record(at, timestamp=FAR_MS if at in (3, 4) else BEGIN_MS + 60_000 * at) for at in range(count)])


def archived(stage: Stage, published_ms: int | None) -> str:
    stage.bucket.mkdir()
    archive = Archive(DirectoryStore(stage.bucket))
    archive.repository.ensure_topic(a_topic())
    archive.append(minutes())
    archive.commit(*(msgspec.structs.replace(entry, published_ms=published_ms) for entry in archive.head.entries))
    return f"{archive.partition.topic}:0"


def test_a_record_that_is_dated_ahead_neither_ends_nor_begins_what_is_read(stage: Stage) -> None:
    selection = archived(stage, END_MS + 3_600_000)
    ran = stage.run("read", selection, "--to", END)
    assert [row["offset"] for row in ran.rows] == list(range(60))
    assert ran.err.count("late_record_found") == 1
    assert [row["offset"] for row in stage.run("read", selection, "--from", END).rows] == list(range(60, 100))
    ran = stage.run("read", selection, "--from", BEGIN, "--count", "3")
    assert ([row["offset"] for row in ran.rows], ran.err) == ([0, 1, 2], "")


def test_a_run_of_an_older_version_is_taken_at_its_word_and_named(stage: Stage) -> None:
    ran = stage.run("read", archived(stage, None), "--to", END)
    assert [row["offset"] for row in ran.rows] == [0, 1, 2]
    assert ran.err.count("late_record_found") == 1


def test_nothing_is_left_out_where_all_records_seem_late(stage: Stage) -> None:
    ran = stage.run("read", archived(stage, 0), "--from", END)
    assert [row["offset"] for row in ran.rows][:2] == [3, 4]
    assert ran.err.count('"is_skipped": false') == ran.err.count("late_record_found") == 1


def test_what_is_not_archived_is_late_when_it_is_dated_later_than_now(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.broker.write(0, minutes())
    world.broker.set_high_watermark(100)
    with capture_logs() as logs:
        assert _offset(world.log, END) == 60
    assert [(each["offset"], each["is_skipped"]) for each in logs] == [(3, True)]
