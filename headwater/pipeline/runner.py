"""Where the tasks of a job run: in threads or processes of this machine, or on Spark (spark/spark_runner.py).

A task is a small value; the function that works on it also gets a store.
"""

import functools
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import wait as wait_for_any
from typing import Any, Protocol, TypeVar

from headwater_core.objectstore.store import ObjectStore
from headwater_core.objectstore.store_url import open_store
from headwater_core.threads import ContextThreads

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")
_AHEAD = 2  # tasks submitted for each worker: one running, one waiting


class Runner(Protocol):
    """Works on tasks."""

    def each(self, work: Callable[[ObjectStore, _Task], _Result], tasks: Iterable[_Task]) -> Iterator[_Result]:
        """The result of every task, in any order. Takes tasks from the iterable no faster than they are done.

        work  a function that can be pickled, as tasks and results can; an error that it raises ends the job
        """
        ...


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True, slots=True)
class StorePlace:
    """A store that each process opens itself. Credentials come from boto3's own chain where the process runs."""

    url: str
    endpoint_url: str | None = None
    region: str | None = None

    def open(self) -> ObjectStore:
        return _opened(self)


@functools.lru_cache(maxsize=4)
def _opened(place: StorePlace) -> ObjectStore:
    return open_store(place.url, endpoint_url=place.endpoint_url, region=place.region)


class Threads:
    """Threads of this process: for tasks that wait for the store more than they compute."""

    def __init__(self, store: ObjectStore, workers: int) -> None:
        self._store, self._workers = store, workers

    def each(self, work: Callable[[ObjectStore, _Task], _Result], tasks: Iterable[_Task]) -> Iterator[_Result]:
        with ContextThreads(self._workers, thread_name_prefix="job") as pool:
            yield from _in_flight(pool, functools.partial(work, self._store), tasks, self._workers * _AHEAD)


class Processes:
    """Processes on this machine: for tasks that compute, such as checksums, which hold the interpreter's lock.

    prepare  called in each process before its first task; must be possible to pickle
    """

    def __init__(self, place: StorePlace, workers: int, prepare: Callable[[], object] | None = None) -> None:
        self._place, self._workers, self._prepare = place, workers, prepare

    def each(self, work: Callable[[ObjectStore, _Task], _Result], tasks: Iterable[_Task]) -> Iterator[_Result]:
        # spawn: a forked child would share the sockets, and the locks of threads that it does not have
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(self._workers, mp_context=spawn, initializer=_begin, initargs=(self._prepare,)) as pool:
            yield from _in_flight(pool, RemoteWork(self._place, work), tasks, self._workers * _AHEAD)


@dataclass(frozen=True, slots=True)
class RemoteWork:
    """Work that opens its own store, once per process."""

    place: StorePlace
    work: Callable[..., Any]

    def __call__(self, task: Any) -> Any:
        return self.work(self.place.open(), task)


def _begin(prepare: Callable[[], object] | None) -> None:
    """In a worker process, before its first task."""
    _end_with_parent()
    if prepare is not None:
        prepare()


def _end_with_parent() -> None:
    """End this process with its parent. A killed parent cannot stop it, and it would continue to write the files of the next run."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait_for_any([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _in_flight(pool: Executor, work: Callable[[_Task], _Result], tasks: Iterable[_Task], most: int) -> Iterator[_Result]:
    rest = iter(tasks)
    pending: set[Future[_Result]] = {pool.submit(work, task) for task in islice(rest, most)}
    try:
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            pending |= {pool.submit(work, task) for task in islice(rest, len(done))}
            for future in done:
                yield future.result()
    finally:
        for future in pending:
            future.cancel()
