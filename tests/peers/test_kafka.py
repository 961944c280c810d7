"""The harness itself against the fixtures: a broker on its own directory answers what the expected files say."""

from pathlib import Path

import pytest

from tests.peers.kafka import (
    KafkaBroker,
    java_consume,
    java_offsets_for_times,
    java_seek,
    produce_aborts_over_segments,
)

pytestmark = pytest.mark.peer


def test_a_log_of_aborts_over_segments_is_what_it_says(tmp_path: Path) -> None:
    with KafkaBroker(tmp_path / "kafka", tmp_path / "work") as broker:
        produce_aborts_over_segments(broker, "returns")
        raw = java_consume(broker.bootstrap, ["returns"], "read_uncommitted")
        committed = java_consume(broker.bootstrap, ["returns"], "read_committed")
        assert raw.bounds == committed.bounds
        assert java_seek(broker.bootstrap, "returns", 0, 10, 3) == [r for r in raw.records if r["offset"] >= 10][:3]
        [at] = java_offsets_for_times(broker.bootstrap, "returns", 0, [raw.records[0]["timestamp"]])
        assert at["offset"] == 0
        broker.stop()
    assert len(raw.records) > len(committed.records) > 0
    segments = sorted(int(path.stem) for path in (tmp_path / "kafka/returns-0").glob("*.log"))
    assert len(segments) >= 6
