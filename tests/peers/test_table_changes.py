"""Exports into Iceberg and Delta tables: each offset once, whatever becomes of the rows, the archive, or the table's history."""

from collections import Counter
from typing import Any

import pytest

from tests.peers.tables import run

pytestmark = [pytest.mark.peer, pytest.mark.slow]


Results = dict[str, dict[str, dict[str, Any]]]  # by scenario and what was done


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("iceberg", marks=pytest.mark.xdist_group("iceberg")),
        pytest.param("delta", marks=[pytest.mark.xdist_group("delta"), pytest.mark.long]),
    ],
)
def table_format(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def results(table_format: str, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Of both scenarios, one after the other on one Spark session."""
    found = run("progress,damage", table_format, tmp_path_factory.mktemp(table_format))[1]
    return {scenario: {each["what"]: each for each in steps} for scenario, steps in found.items()}


def test_what_is_deleted_from_a_table_stays_deleted(table_format: str, results: Results) -> None:
    progress = results["progress"]
    offsets = {what: [tuple(each) for each in facts["offsets"]] for what, facts in progress.items()}
    first = [(partition, offset) for partition in range(2) for offset in range(6)]
    assert offsets["first"] == first
    assert offsets["one more"] == [*first, (1, 6)]
    assert offsets["newest row deleted"] == first
    assert offsets["all rows deleted, and history forgotten"] == []
    assert offsets["two more"] == [(0, 6), (0, 7)]
    for what in ("other isolation", "other columns"):
        assert progress[what]["code"] == 2
        assert what.removeprefix("other ") in progress[what]["error"]
    assert offsets["rolled back"] == [(0, 6), (0, 7), (0, 8)]  # what the table had lost with that is exported again
    assert offsets["one of two at once"] == [*offsets["rolled back"], (0, 9)]
    assert progress["the other"]["code"] == 7
    twice = [(0, 9)] if table_format == "iceberg" else []  # there nothing refuses it, and the error has that
    assert offsets["the other"] == [*offsets["one of two at once"], *twice]
    assert ("may be there twice" in progress["the other"]["error"]) == bool(twice)
    assert not any(facts.get("notes") for facts in progress.values())


def test_one_partitions_damage_stops_no_other(results: Results) -> None:
    damage = results["damage"]
    rows = {what: Counter(tuple(each) for each in facts.get("offsets", ())) for what, facts in damage.items()}
    users = Counter({(partition, offset): 1 for partition in range(2) for offset in range(6)})
    pay = Counter({(partition, offset): 1 for partition in range(2) for offset in range(3)})
    new = Counter({(1, offset): 1 for offset in range(6, 16)})
    for what in ("damaged", "still damaged"):
        assert damage[what]["code"] == 3
        assert [(topic, partition) for topic, partition, _ in damage[what]["failed"]] == [("users", 0)]
        stopped = Counter({(0, offset): 1 for offset in range(6, 11)})
        assert not rows[what] - (users + pay + new + stopped)  # of partition 0 what lies before the damage, at most
        assert not (users + pay + new) - rows[what]
    mended = users + pay + new + Counter({(0, offset): 1 for offset in range(6, 16)})
    assert rows["mended"] == mended
    assert damage["created again, and one gone"]["code"] == 3
    assert [(topic, partition) for topic, partition, _ in damage["created again, and one gone"]["failed"]] == [("users", 1)]
    assert rows["created again, and one gone"] == mended + Counter({(0, 0): 1, (0, 1): 1})
    old = damage["an older version's"]
    assert (old["ranges"], old["code"]) == (0, 0)
    assert "taken over" in old["notes"][0]
    assert damage["taken over"]["offsets"] == [[0, 16]]  # what was deleted since is known
    assert damage["taken over"]["notes"] == []
    assert damage["no export"]["code"] == 2
