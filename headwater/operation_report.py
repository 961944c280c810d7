"""What a command that works by itself reports of its operation to the agent on its data directory, where there is one."""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headwater.command_operation import INTERRUPTED, begin_operation
from headwater.overrides import NO_SETTINGS
from headwater_core.errors import HeadwaterError, NotFound

EVERY_S = 3.0  # between two reports; the agent takes a command for lost after a minute
ANSWER_S = 2.0
END_S = 1.0  # what the end of a command waits for its last report
TEXT_CHARS_MAX = 500  # of an argument; with the next two far below what the agent takes
LIST_ITEMS_MAX = 50
LIST_BYTES_MAX = 2048  # of JSON


class OperationReport:
    """One command's. A thread reports, and gives up what fails: an agent that is not there, is of another version or does not answer
    neither slows nor fails the command. When the agent says that the operation is cancelled, the command is interrupted as by Ctrl-C.

    results  sums of what was done, for the end
    """

    def __init__(
        self,
        data_dir: Path,
        verb: str,
        arguments: Mapping[str, Any],
        total_bytes: int | None,
        *,
        settings: Mapping[str, str] = NO_SETTINGS,
        interrupt: Callable[[], object] = lambda: os.kill(os.getpid(), signal.SIGINT),
        every_s: float = EVERY_S,
    ) -> None:
        self.results: dict[str, Any] = {}
        self._data_dir, self._settings, self._interrupt, self._every_s = data_dir, settings, interrupt, every_s
        self._id = begin_operation()
        self._begin = {"id": self._id, "verb": verb, "arguments": shortened(arguments), "pid": os.getpid()}
        self._done, self._total = 0, total_bytes
        self._end: dict[str, Any] = {}
        self._ended, self._is_begun, self._is_cancelled = threading.Event(), False, False
        self._thread = threading.Thread(target=self._report, name="operation-report", daemon=True)
        self._thread.start()

    def beside(self, shown: Callable[..., object]) -> Callable[..., None]:
        """Progress for both: called as `shown` is, with bytes that are done more."""

        def advance(done_bytes: int, *rest: Any) -> None:
            self._done += done_bytes
            shown(done_bytes, *rest)

        return advance

    def expect(self, total_bytes: int) -> None:
        """So much there is to do, which was not known at the begin."""
        self._total = total_bytes

    def end(self, error: BaseException | None) -> None:
        """It has ended, with this error if any. Returns soon, whether that was heard or not."""
        end: dict[str, Any] = {"state": "done"}
        if isinstance(error, KeyboardInterrupt):
            end = {"state": "cancelled", "error": "interrupted", "exit_code": INTERRUPTED}
        elif error is not None:
            end = {
                "state": "failed",
                "error": str(error) or repr(error),
                "exit_code": getattr(error, "exit_code", HeadwaterError.exit_code),
            }
        self._end = end | {"results": self.results}
        self._ended.set()
        self._thread.join(END_S)

    def _report(self) -> None:
        while True:
            is_last = self._ended.is_set()
            try:
                self._tell(is_last)
            except NotFound:
                self._is_begun = False  # another agent
            except HeadwaterError:
                pass
            except Exception:
                return  # no report is worth a traceback
            if is_last:
                return
            self._ended.wait(self._every_s)

    def _tell(self, is_last: bool) -> None:
        from headwater.agent_api import AgentApi

        api, path = AgentApi(self._data_dir, self._settings), f"/v1/operations/{self._id}"
        if not self._is_begun:
            api.post("/v1/operations", self._begin, timeout_s=ANSWER_S)
            self._is_begun = True
        progress = {"done": self._done, "total": self._total, "unit": "bytes"}
        found = api.post(f"{path}/progress", progress, timeout_s=ANSWER_S)
        if is_last:
            api.post(f"{path}/end", self._end, timeout_s=ANSWER_S)
        elif found["cancelling"] and not self._is_cancelled:
            self._is_cancelled = True
            self._interrupt()


def shortened(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What an agent takes, whatever a command was given: of a long list the first items, and as NAME_count how many there are."""
    found: dict[str, Any] = {}
    for name, value in arguments.items():
        if isinstance(value, str):
            found[name] = _shortened(value)
        elif isinstance(value, list | tuple):
            items = [_shortened(str(each)) for each in value[:LIST_ITEMS_MAX]]
            while len(json.dumps(items)) > LIST_BYTES_MAX:
                items.pop()
            found[name] = items
            if len(items) < len(value):
                found[f"{name}_count"] = len(value)
        else:
            found[name] = value
    return found


def _shortened(text: str) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()  # a path may be no text
    return text if len(text) <= TEXT_CHARS_MAX else f"{text[:TEXT_CHARS_MAX]}..."


@contextmanager
def reported(
    data_dir: Path, verb: str, arguments: Mapping[str, Any], total_bytes: int | None = None, settings: Mapping[str, str] = NO_SETTINGS
) -> Iterator[OperationReport]:
    """The block is the operation; what it raises is how it ends. settings: see AgentApi; to an agent with others nothing is reported"""
    report = OperationReport(data_dir, verb, arguments, total_bytes, settings=settings)
    try:
        yield report
    except BaseException as error:
        report.end(error)
        raise
    report.end(None)
