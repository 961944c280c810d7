"""Threads whose work has the context of its submitter, such as what its log events name; and some that nothing has to wait for."""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from time import monotonic
from typing import Any, TypeVar

T = TypeVar("T")

STOP_S = 2.0  # what runs at the end may take so long; after that it is abandoned
_WAITING_PER_THREAD = 4  # items of `run_each`, those that run among them
IDLE_S = 5.0  # a thread without work ends after that


class ContextThreads(ThreadPoolExecutor):
    """As ThreadPoolExecutor, whose work has no context."""

    def submit(self, work: Callable[..., T], /, *arguments: Any, **named: Any) -> "Future[T]":
        return super().submit(copy_context().run, work, *arguments, **named)

    def run_each(self, work: Callable[[T], object], items: Iterable[T]) -> None:
        """`work` of every one of `items`, of which few are taken before there is a thread for them. After an error no more is begun, and
        the first one is raised when what runs has ended."""
        taken = _WAITING_PER_THREAD * self._max_workers
        room, waiting, errors = threading.Semaphore(taken), set[Future[object]](), list[BaseException]()

        def ended(future: Future[object]) -> None:
            waiting.discard(future)
            if not future.cancelled() and (error := future.exception()) is not None:
                errors.append(error)
            room.release()

        for item in items:
            room.acquire()
            if errors:
                room.release()
                break
            future = self.submit(work, item)
            waiting.add(future)
            future.add_done_callback(ended)
        while errors and waiting:
            waiting.pop().cancel()
        for _ in range(taken):
            room.acquire()
        if errors:
            raise errors[0]


class DaemonThreads(Executor):
    """As ContextThreads, whose threads the interpreter joins at its end whatever they wait for: a disk that hangs, say. These are
    daemons, and `shutdown` waits for them STOP_S at most."""

    def __init__(self, threads_max: int, name: str) -> None:
        self._threads_max, self._name = threads_max, name
        self._changed = threading.Condition()
        self._queue: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._closed = False

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Raises RuntimeError when closed."""
        future: Future[Any] = Future()
        with self._changed:
            if self._closed:
                raise RuntimeError("closed")
            self._queue.append((future, partial(copy_context().run, work, *arguments, **named)))
            if len(self._queue) > self._idle and len(self._threads) < self._threads_max:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._threads.add(thread)
                thread.start()
            else:
                self._changed.notify()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more work, and wait STOP_S for what runs. `cancel_futures`: what has not begun is cancelled."""
        with self._changed:
            self._closed = True
            given_up = list(self._queue) if cancel_futures else []
            if cancel_futures:
                self._queue.clear()
            self._changed.notify_all()
            threads = list(self._threads)
        for future, _ in given_up:
            future.cancel()
        end_s = monotonic() + STOP_S
        for thread in threads if wait else ():
            if thread is not threading.current_thread():
                thread.join(max(0.0, end_s - monotonic()))

    def _run(self) -> None:
        while (job := self._next()) is not None:
            future, work = job
            if future.set_running_or_notify_cancel():
                try:
                    outcome = work()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(outcome)
                    del outcome
            del job, future, work  # an idle thread holds nothing

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._queue or self._closed, IDLE_S)
            self._idle -= 1
            if self._queue:
                return self._queue.popleft()
            self._threads.discard(threading.current_thread())
            return None
