"""Agents that run real code and can be stopped at any point of it: one thread each, of which only one runs at a time."""

import threading
from collections.abc import Callable


class Crash(BaseException):
    """The process ends here. No handler of the real code may stop it."""


class Actor:
    """Runs one task at a time. `resume` lets it run until it pauses or ends; no other one runs then."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.at = ""
        self._task: threading.Thread | None = None
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self._crash = False
        self._failure: BaseException | None = None

    @property
    def is_busy(self) -> bool:
        return self._task is not None

    def start(self, task: Callable[[], None]) -> None:
        self.at, self._crash, self._failure = "start", False, None
        self._task = threading.Thread(target=self._run, args=(task,), daemon=True)
        self._task.start()

    def resume(self) -> None:
        """Raises what the task raised, Crash apart."""
        self._go.release()
        self._back.acquire()
        if self.at == "end":
            assert self._task
            self._task.join()
            self._task = None
            if self._failure:
                raise self._failure

    def crash(self) -> None:
        self._crash = True
        self.resume()

    def pause(self, at: str) -> None:
        """For the task itself: let others run."""
        self.at = at
        self._back.release()
        self._go.acquire()
        if self._crash:
            raise Crash

    def _run(self, task: Callable[[], None]) -> None:
        self._go.acquire()
        try:
            if not self._crash:
                task()
        except Crash:
            pass
        except BaseException as failure:
            self._failure = failure
        finally:
            self.at = "end"
            self._back.release()
