"""Which commit's progress counts: a table may forget commits, be rolled back, or be changed by others."""

import pytest

from headwater.pipeline.export.backlog import decode_places, encode_places
from headwater.pipeline.scan.progress import Reached
from headwater.pipeline.spark.spark_errors import named_error
from headwater.pipeline.spark.table_history import (
    Mirror,
    TableCommit,
    TableCommits,
    TableDocument,
    decode_document,
    delta_path,
    newest_document,
)
from headwater_core.errors import CorruptData, HeadwaterError, TransientError, Unauthorised, UnsupportedFormat
from headwater_core.partition import PartitionId, topic_id_text


def a_document(sequence: int) -> TableDocument:
    return TableDocument(
        store="file:///b", read_committed=True, columns=("offset",), sequence=sequence, commit_id=f"c{sequence}", topics=()
    )


def a_commit(number: int, *, exported: bool = True) -> TableCommit:
    return TableCommit(id=str(number), order=number, document=a_document(number) if exported else None)


def history(*commits: TableCommit, rolled_back: tuple[TableCommit, ...] = (), is_whole: bool = False) -> TableCommits:
    return TableCommits(commits=commits, rolled_back=rolled_back, is_whole=is_whole)


def found(commits: TableCommits, mirror: Mirror | None = None) -> int | None:
    document = newest_document(commits, mirror, "t")
    return document.sequence if document else None


def a_mirror(number: int) -> Mirror:
    return Mirror.of(a_document(number), a_commit(number))


def test_the_newest_commit_with_a_document_counts_whatever_the_mirror_says() -> None:
    commits = history(a_commit(5, exported=False), a_commit(4), a_commit(3), is_whole=True)
    assert found(commits) == found(commits, a_mirror(3)) == found(commits, a_mirror(9)) == 4


def test_the_mirror_counts_when_its_commit_is_forgotten() -> None:
    assert found(history(a_commit(5, exported=False), a_commit(4, exported=False)), a_mirror(3)) == 3
    assert found(history(), a_mirror(3)) == 3


def test_the_mirror_counts_when_its_commit_is_one_of_others() -> None:
    """A table of an older version is taken over at the commit that was its newest then."""
    assert found(history(a_commit(5, exported=False), a_commit(4, exported=False), is_whole=True), a_mirror(4)) == 4


def test_a_mirror_of_a_commit_that_was_rolled_back_does_not_count() -> None:
    older = a_commit(2, exported=False)
    assert found(history(older, rolled_back=(a_commit(3),)), a_mirror(3)) is None
    assert found(history(older), a_mirror(3)) is None  # its commit is forgotten, and what the table holds is older
    assert found(history(a_commit(5, exported=False), is_whole=True), a_mirror(3)) is None  # all commits are known, and it is none


def test_a_table_that_was_only_made_has_the_document_it_was_made_with() -> None:
    made = Mirror.of(a_document(0), None)
    assert found(history(is_whole=True), made) == 0
    assert found(history(a_commit(1, exported=False), is_whole=True), made) == 0
    assert found(history(a_commit(1), is_whole=True), made) == 1


def test_a_table_that_says_nothing_has_nothing() -> None:
    assert found(history(a_commit(1, exported=False))) is None


def test_numbers_of_commits_that_were_rolled_back_are_not_used_again() -> None:
    assert history(a_commit(2), rolled_back=(a_commit(7), a_commit(4, exported=False))).sequence_max == 7


def test_a_restored_delta_table_has_the_past_of_the_version_it_went_back_to() -> None:
    plain = [(number, f"2026-01-0{number + 1} 00:00:00", None) for number in range(5)]
    assert delta_path(plain) == [4, 3, 2, 1, 0]
    by_version = [*plain, (5, "2026-01-06 00:00:00", ("1", None)), (6, "2026-01-07 00:00:00", None)]
    assert delta_path(by_version) == [6, 5, 1, 0]
    by_time = [*plain, (5, "2026-01-06 00:00:00", (None, "2026-01-03 12:00:00"))]
    assert delta_path(by_time) == [5, 2, 1, 0]
    assert delta_path(by_version[3:]) == [6, 5]
    assert delta_path([]) == []


def test_a_document_comes_back_and_damage_is_noticed() -> None:
    text = a_document(3).encode()
    assert "\n" not in text
    assert decode_document(text, "t") == a_document(3)
    with pytest.raises(CorruptData, match="progress of t"):
        decode_document(text.replace("c3", "c4"), "t")
    with pytest.raises(UnsupportedFormat):
        decode_document('{"format": [2, 0]}', "t")


def test_places_come_back_by_incarnation() -> None:
    old, new = topic_id_text(bytes(16)), topic_id_text(bytes(range(16)))
    places = {
        PartitionId("kitchen", old, 0, "soup"): Reached(10, 3),
        PartitionId("kitchen", old, 11, "soup"): Reached(5),
        PartitionId("kitchen", new, 0, "soup"): Reached(0),
    }
    assert decode_places(encode_places(places), "t") == places


# What Spark says


TASK = """An error occurred while calling o48.append.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times
Traceback (most recent call last):
  File "split_reader.py", line 1, in read_split
model.errors.NotFound: data/1.log

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "worker.py", line 2, in main
{raised}

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:1)
Driver stacktrace:
"""


@pytest.mark.parametrize(
    ("raised", "kind", "code"),
    [
        ("headwater_core.errors.CorruptData: data/1.log, byte 9: crc", CorruptData, 4),
        ("headwater_core.errors.TransientError: slow down", TransientError, 5),
        ("headwater_core.errors.Unauthorised: no credentials", Unauthorised, 8),
    ],
)
def test_what_a_task_raised_is_raised_again(raised: str, kind: type[HeadwaterError], code: int) -> None:
    found = named_error(TASK.format(raised=raised))
    assert type(found) is kind
    assert str(found) == raised.partition(": ")[2]
    assert found.exit_code == code


def test_what_only_spark_knows_is_one_line() -> None:
    found = named_error("An error occurred while calling o48.create.\n: java.lang.IllegalStateException: no catalog\n\tat a.b\n")
    assert str(found) == "Spark: java.lang.IllegalStateException: no catalog"
    assert str(named_error("[TABLE_NOT_FOUND] nowhere\n\nJVM stacktrace:\n")) == "Spark: [TABLE_NOT_FOUND] nowhere"
    assert str(named_error("ValueError: model.errors.Nonsense: x")) == "Spark: ValueError: model.errors.Nonsense: x"
