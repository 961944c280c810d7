"""Tasks of a job on a Spark cluster, and the session that they need."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from headwater.pipeline.runner import RemoteWork, StorePlace
from headwater_core.errors import UsageError
from headwater_core.objectstore.store import ObjectStore

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession as SparkSession

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")
_ROUND = 16  # tasks of one Spark job for each core: results come back between jobs


class OnSpark:
    """On a Spark cluster, or Spark's local mode, in jobs of some tasks for each core."""

    def __init__(self, place: StorePlace, context: "SparkContext") -> None:
        self._place, self._context = place, context

    def each(self, work: Callable[[ObjectStore, _Task], _Result], tasks: Iterable[_Task]) -> Iterator[_Result]:
        rest, elsewhere = iter(tasks), RemoteWork(self._place, work)
        while taken := list(islice(rest, _ROUND * self._context.defaultParallelism)):
            yield from self._context.parallelize(taken, len(taken)).map(elsewhere).collect()


@contextmanager
def spark_session(master: str | None, name: str) -> "Iterator[SparkSession]":
    """The active Spark session (spark-submit, a notebook), else a new one, which is stopped at the end.

    master  "local[2]", "spark://host:7077", …; None: as spark-submit or Spark's configuration has it

    Raises UsageError when Spark is not installed. Spark's own errors become HeadwaterErrors.
    """
    try:
        from pyspark.sql import SparkSession

        from headwater.pipeline.spark.spark_errors import as_headwater_errors
    except ImportError:
        raise UsageError('Spark is not installed: pip install "headwater[spark]" (and Java 17 or later)') from None

    active = SparkSession.getActiveSession()
    if active is not None:
        with as_headwater_errors():
            yield active
        return
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers need what this process has
    builder = SparkSession.builder.appName(name).config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    with as_headwater_errors():
        session = (builder.master(master) if master else builder).getOrCreate()
        try:
            yield session
        finally:
            session.stop()
