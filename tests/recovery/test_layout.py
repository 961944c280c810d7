from pathlib import Path, PurePath

import pytest
from msgspec.structs import replace

import recovery
from headwater_core.partition import TopicPartition
from headwater_core.segments import checkpoints
from headwater_core.segments.log_dirs import LogDirs
from manifests.entry import Entry
from recovery import layout
from tests.fixtures import unpack
from tests.recovery.archived import archive_in_memory
from tests.recovery.plans import a_head, a_topic, an_entry, planned


def offsets(log_dir: Path, name: str) -> dict[str, int]:
    raw = (log_dir / name).read_bytes()
    return {str(partition): offset for partition, offset in checkpoints.decode_offsets(raw, where=name).items()}


@pytest.mark.parametrize("name", ["pantry", "kitchen"])
def test_no_log_counts_as_cleaned_beyond_what_its_source_had_cleaned(name: str, tmp_path: Path) -> None:
    """Else a tombstone goes as clean, and the value that it deletes stays in an earlier segment for good."""
    source = offsets(unpack(name), checkpoints.CLEANED)
    assert source or name == "kitchen"
    store, repository = archive_in_memory(unpack(name))
    recovery.apply(recovery.plan(repository, None), tmp_path / "log", store)
    recovered = offsets(tmp_path / "log", checkpoints.CLEANED)
    assert all(offset <= source.get(partition, -1) for partition, offset in recovered.items())


@pytest.mark.parametrize(("cleaned", "line"), [((), None), ((0,), 10), ((0, 10), 20), ((10, 20), None), ((0, 20), 10), ((0, 10, 20), 30)])
def test_a_log_counts_as_cleaned_up_to_the_first_entry_that_was_not(cleaned: tuple[int, ...], line: int | None) -> None:
    entries = [an_entry(base, base + 9, cleaned=base in cleaned) for base in (0, 10, 20)]
    made = layout.checkpoint_files(planned(a_topic(a_head(*entries), cleanup_policy="compact")))
    named = checkpoints.decode_offsets(made[PurePath(checkpoints.CLEANED)], where="cleaned")
    assert named == ({} if line is None else {TopicPartition("orders", 0): line})


def test_a_log_start_within_a_segment_is_named(tmp_path: Path) -> None:
    """Without that, records that were deleted come back."""
    store, repository = archive_in_memory(unpack("kitchen"))
    partition = repository.resolve("bills").partition_id(0)
    held = repository.load(partition)
    assert held is not None
    repository.commit(held, replace(held.head, start_offset=7))
    recovery.apply(recovery.plan(repository, ["bills", "menu"]), tmp_path / "log", store)
    assert offsets(tmp_path / "log", checkpoints.LOG_STARTS) == {"bills:0": 7}


def test_the_end_of_a_log_stays_where_it_was_when_its_last_offsets_are_gone(tmp_path: Path) -> None:
    """As after a gap, or a compaction that removed the last records: the same offsets must not be handed out again."""
    store, repository = archive_in_memory(unpack("kitchen"))
    partition = next(each for each in repository.partitions("bills", repository.resolve("bills").topic_id) if each.partition == 0)
    held = repository.load(partition)
    assert held is not None
    gap = Entry(base_offset=held.head.next_offset, last_offset=held.head.next_offset + 9, gap=True)
    repository.commit(held, replace(held.head, entries=(*held.head.entries, gap), last_offset=gap.last_offset))
    recovery.apply(recovery.plan(repository, ["bills"]), tmp_path / "log", store)
    log = next(each for each in LogDirs([tmp_path / "log"]).partitions() if each.partition.partition == 0)
    assert log.high_watermark == gap.next_offset
    assert (log.segments[-1].base_offset, log.segments[-1].size_bytes) == (gap.next_offset, 0)


def test_a_log_that_starts_within_a_segment_says_so_in_its_epoch_history_too(tmp_path: Path) -> None:
    """A broker cuts it there, and a reader of the directory trusts what begins below the checkpointed log start."""
    store, repository = archive_in_memory(unpack("kitchen"))
    partition = next(each for each in repository.partitions("bills", repository.resolve("bills").topic_id) if each.partition == 0)
    held = repository.load(partition)
    assert held is not None
    repository.commit(held, replace(held.head, start_offset=7))
    recovery.apply(recovery.plan(repository, ["bills"]), tmp_path / "log", store)
    log = next(each for each in LogDirs([tmp_path / "log"]).partitions() if each.partition.partition == 0)
    assert (log.segments[0].base_offset, log.epochs.first_offset, log.start_offset) == (0, 7, 7)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [("100", 100), ("0", 0), ("2147483647", 2**31 - 1), *((each, 4096) for each in ("2147483648", "9" * 5000, "-1", "x", ""))],
)
def test_segments_are_indexed_as_the_broker_will_do_it(value: str, wanted: int) -> None:
    [topic] = planned(a_topic(a_head(an_entry(0, 9)))).topics
    assert layout.index_interval_bytes(replace(topic, configs={"index.interval.bytes": value})) == wanted
