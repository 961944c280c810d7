"""The data source on a Spark standalone cluster of two workers, submitted as users do; and what kill -9 of a driver leaves."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures import Isolation, expected
from tests.headwater.pipeline.growing import Growing
from tests.headwater.pipeline.spark_fixtures import archived, need_java
from tests.peers import spark_program
from tests.peers.spark import SparkCluster

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("spark-cluster")]

PROGRAM = Path(spark_program.__file__)
TOPICS = ("recipes.zstd", "recipes.snappy", "recipes.lz4", "recipes.gzip", "recipes.none", "orders.placed", "refunds", "photos")
ISOLATIONS: tuple[Isolation, ...] = ("read_uncommitted", "read_committed")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    need_java()
    with SparkCluster(tmp_path_factory.mktemp("cluster"), workers=2) as cluster:
        yield cluster


def test_two_workers_read_what_the_java_consumer_got(cluster: SparkCluster, tmp_path: Path) -> None:
    executors = cluster.submit(PROGRAM, "read", archived("pantry"), ",".join(TOPICS), tmp_path).result()
    assert int(executors) == 2
    for isolation in ISOLATIONS:
        rows = [json.loads(line) for line in (tmp_path / isolation).read_text().splitlines()]
        lines = [line for line in expected("pantry", isolation) if line["topic"] in TOPICS]
        assert rows == [{name: value for name, value in line.items() if name != "leader_epoch"} for line in lines]


@pytest.mark.long
def test_a_stream_whose_driver_is_killed_writes_each_offset_once(cluster: SparkCluster, tmp_path: Path) -> None:
    world = Growing(tmp_path / "archive")
    places = (world.url, tmp_path / "checkpoint", tmp_path / "sink")
    batches = -1
    for life in range(2):
        for partition in range(2 + life):
            world.append("orders", partition, records=25, batches=4)
        driver = cluster.submit(PROGRAM, "follow", *places)
        while (line := driver.line()).isdigit() and int(line) < batches + 2:
            pass
        driver.killed()  # in the middle of the next batch
        assert line.isdigit(), "the stream ended by itself"
        batches = int(line)
    world.append("pay", records=10)
    last = cluster.submit(PROGRAM, "finish", *places).result().splitlines()[-1]
    assert [tuple(row) for row in json.loads(last)] == world.offsets()
