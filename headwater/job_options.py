"""Where a job runs: the options that say so, and what they come to."""

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headwater import event_log
from headwater_core.errors import UsageError

if TYPE_CHECKING:
    from headwater.config import Config
    from headwater.pipeline.runner import Runner, StorePlace
    from headwater.pipeline.spark.spark_runner import SparkSession
    from headwater_core.objectstore.store import ObjectStore

PROCESSES_FROM_BYTES = 1 << 30  # below this, starting them takes longer than they save

_R = TypeVar("_R")
_OPTIONS = (
    click.option("--master", metavar="URL", help="Run on this Spark: local[4], spark://HOST:7077, yarn, k8s://…"),
    click.option("--spark", "submitted", is_flag=True, help="Run on the Spark that spark-submit or Spark's own configuration names."),
    click.option("--workers", type=click.IntRange(1, 256), help="Processes on this machine; as many as it has processors."),
)


@dataclass(frozen=True, slots=True)
class JobPlacement:
    """What the options say."""

    master: str | None
    submitted: bool
    workers: int | None

    @property
    def on_spark(self) -> bool:
        return self.submitted or self.master is not None

    @contextmanager
    def spark(self, name: str) -> "Iterator[SparkSession]":
        from headwater.pipeline.spark.spark_runner import spark_session

        with spark_session(self.master, f"headwater {name}") as session:
            yield session

    @contextmanager
    def runner(self, config: "Config", store: "ObjectStore", name: str, size_bytes: int) -> "Iterator[Runner]":
        """Works on tasks of about `size_bytes` in all."""
        from headwater.pipeline.runner import Processes, Threads

        if self.on_spark:
            from headwater.pipeline.spark.spark_runner import OnSpark

            with self.spark(name) as session:
                yield OnSpark(place_of(config), session.sparkContext)
            return
        workers = self.workers or len(os.sched_getaffinity(0))
        log = functools.partial(event_log.configure, config.node.log_level, config.node.log_format)  # else they print to stdout
        yield Processes(place_of(config), workers, log) if size_bytes >= PROCESSES_FROM_BYTES and workers > 1 else Threads(store, workers)


def place_of(config: "Config") -> "StorePlace":
    from headwater.pipeline.runner import StorePlace

    return StorePlace(config.store.url, config.store.endpoint_url, config.store.region)


def placed(verb: Callable[..., _R]) -> Callable[..., _R]:
    """Give `verb` the options, and what they say as its argument `placing`."""

    def with_placing(*arguments: Any, master: str | None, submitted: bool, workers: int | None, **rest: Any) -> _R:
        placing = JobPlacement(master, submitted, workers)
        if placing.on_spark and workers is not None:
            raise UsageError("--workers is for this machine; Spark has its own settings (--master local[4])")
        return verb(*arguments, placing=placing, **rest)

    wrapped: Callable[..., _R] = functools.update_wrapper(with_placing, verb)  # takes over the options that `verb` has already
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped
