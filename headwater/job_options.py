"""Where a job runs: its options, and the runner that they choose."""

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

PROCESSES_FROM_BYTES = 1 << 30  # for less, starting them takes longer than they save

_R = TypeVar("_R")
_OPTIONS = (
    click.option("--master", metavar="URL", help="Run on this Spark: local[4], spark://HOST:7077, yarn, k8s://…"),
    click.option("--spark", "submitted", is_flag=True, help="Run on the Spark of spark-submit, or of Spark's own configuration."),
    click.option("--workers", type=click.IntRange(1, 256), help="Processes on this machine.  [default: one per processor]"),
)


@dataclass(frozen=True, slots=True)
class JobPlacement:
    """Where a job runs. master: the URL of a Spark; submitted: the Spark that is already configured; else this machine."""

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
        """A runner for tasks of about `size_bytes` in all. Raises UsageError when Spark is not installed."""
        from headwater.pipeline.runner import Processes, Threads

        if self.on_spark:
            from headwater.pipeline.spark.spark_runner import OnSpark

            with self.spark(name) as session:
                yield OnSpark(place_of(config), session.sparkContext)
            return
        workers = self.workers or len(os.sched_getaffinity(0))
        log = functools.partial(
            event_log.configure, config.node.log_level, config.node.log_format
        )  # unconfigured, they would print to stdout
        yield Processes(place_of(config), workers, log) if size_bytes >= PROCESSES_FROM_BYTES and workers > 1 else Threads(store, workers)


def place_of(config: "Config") -> "StorePlace":
    from headwater.pipeline.runner import StorePlace

    return StorePlace(config.store.url, config.store.endpoint_url, config.store.region)


def placed(verb: Callable[..., _R]) -> Callable[..., _R]:
    """Give `verb` the options, and the JobPlacement that they make as its argument `placing`."""

    def with_placing(*arguments: Any, master: str | None, submitted: bool, workers: int | None, **rest: Any) -> _R:
        placing = JobPlacement(master, submitted, workers)
        if placing.on_spark and workers is not None:
            raise UsageError("--workers is for jobs on this machine; the number of Spark's workers is part of --master, as in local[4]")
        return verb(*arguments, placing=placing, **rest)

    wrapped: Callable[..., _R] = functools.update_wrapper(with_placing, verb)  # takes over the options that `verb` has already
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped
