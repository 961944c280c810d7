"""A few topics of the pantry: transactions, compaction, retention and many segments are among them."""

import shutil
from pathlib import Path
from typing import Any

from tests.fixtures import Isolation, expected, private_copy
from tests.headwater.conftest import Stage
from tests.headwater.test_verbs import as_expected

TOPICS = ("fridge-state", "orders.placed", "refunds", "stock.levels", "thermo-samples")
SEGMENTS = 27


def a_sample_log(into: Path) -> Path:
    """A private log directory with nothing but TOPICS, and the broker's own metadata about all."""
    log = private_copy("pantry", into)
    for directory in log.iterdir():
        if directory.is_dir() and directory.name.rpartition("-")[0] not in (*TOPICS, "__cluster_metadata"):
            shutil.rmtree(directory)
    assert len(list(log.glob("[!_]*-*/*.log"))) == SEGMENTS
    return log


def sample_records(isolation: Isolation) -> list[dict[str, Any]]:
    return [record for record in expected("pantry", isolation) if record["topic"] in TOPICS]


def read(stage: Stage, isolation: Isolation, log: Path | None) -> list[dict[str, Any]]:
    """What `headwater read` prints of these topics, with the fields of the expectation."""
    rows = []
    for topic in TOPICS:
        ran = stage.run("read", topic, "--isolation", isolation, log=log)
        assert ran.code == 0, ran.err
        rows += [as_expected(row) for row in ran.rows]
    return rows
