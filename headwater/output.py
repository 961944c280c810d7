"""What commands print: data to stdout as a table, JSON or JSON lines; messages and progress to stderr."""

import base64
import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TextIO

import click

from headwater.columns import Column, Row, as_size, as_text, lay_out
from headwater.units import duration_text

PLAIN_EVERY_S = 10.0
PIECE_BYTES = 3 << 18  # of a value that is printed as base64: three bytes are four characters

format_option = click.option(
    "-o", "--output", "form", type=click.Choice(["table", "json", "jsonl"]), default="table", show_default=True, help="Output format."
)


class ReaderGone(Exception):
    """The reader of stdout has closed it, and the command's exit code would tell it nothing more."""


def open_missing_streams() -> None:
    """Give a process that was started with closed streams (`>&-`) the null device in their place.

    Otherwise the next file that is opened gets the stream's number, and output is written into that file.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115  for the life of the process


def discard_output(stream: TextIO | None = None) -> None:
    """Send what is still buffered for a reader that has gone to the null device, so that it does not fail again at exit.

    stream  stdout unless another one is named
    """
    with contextlib.suppress(OSError, ValueError):  # it may be no file at all
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, (stream or sys.stdout).fileno())
        os.close(null)


class _Data:
    """Writes to `stream`. Once its reader has gone, the rest is dropped, or ends the command by ReaderGone."""

    def __init__(self, stream: TextIO, *, ends_with_reader: bool = False, errors: str = "replace") -> None:
        self._stream, self._ends_with_reader, self._gone = stream, ends_with_reader, False
        if errors == "backslashreplace" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors)  # JSON is UTF-8, whatever the locale; a lone surrogate stays valid JSON
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)

    def write(self, text: str) -> None:
        self._attempt(lambda: self._stream.write(text))

    def flush(self) -> None:
        self._attempt(self._stream.flush)

    def _attempt(self, do: Callable[[], object]) -> None:
        if self._gone:
            return
        try:
            do()
        except BrokenPipeError:
            self._gone = True
            discard_output()
            if self._ends_with_reader:
                raise ReaderGone from None


def emit(
    form: str,
    columns: Sequence[Column],
    rows: Iterable[Row],
    *,
    title: str = "",
    out: TextIO | None = None,
    ends_with_reader: bool = False,
    lines_max: int | None = None,
) -> None:
    """Print `rows`. JSON has every key of a row, and bytes as base64. A table shows `columns`, as many as the window has room for. JSON
    lines are streamed.

    When the reader of stdout has gone, the other rows are still consumed: the command's exit code depends on all of them.

    ends_with_reader  the exit code does not depend on them: raise ReaderGone instead
    title, lines_max  of a table: a line above it; how many lines a terminal has for it
    """
    data = _Data(out or sys.stdout, ends_with_reader=ends_with_reader, errors="replace" if form == "table" else "backslashreplace")
    if form == "jsonl":
        for row in rows:
            for piece in _line(row):
                data.write(piece)
    elif form == "json":
        data.write(json.dumps(list(rows), ensure_ascii=False, indent=1, default=as_base64) + "\n")
    else:
        data.write(title and f"{title}\n")
        data.write(_table(columns, rows, out or sys.stdout, lines_max))
    data.flush()


def as_base64(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _line(row: Row) -> Iterator[str]:
    """Yield a JSON line. A row with a long value of bytes comes in pieces: whole, its text would be in memory several times."""
    if not any(isinstance(value, bytes) and len(value) > PIECE_BYTES for value in row.values()):
        yield json.dumps(row, ensure_ascii=False, default=as_base64) + "\n"
        return
    before = "{"
    for name, value in row.items():
        yield f"{before}{json.dumps(name)}: "
        before = ", "
        if isinstance(value, bytes):
            yield '"'
            yield from (as_base64(value[at : at + PIECE_BYTES]) for at in range(0, len(value), PIECE_BYTES))
            yield '"'
        else:
            yield json.dumps(value, ensure_ascii=False, default=as_base64)
    yield "}\n"


class DocumentOutput:
    """Prints an encoded document, UTF-8, piece by piece; no piece ends inside a character. on_one_line: without its line breaks and what
    it is indented by"""

    def __init__(self, *, on_one_line: bool = False) -> None:
        self._data, self._on_one_line = _Data(sys.stdout, errors="backslashreplace"), on_one_line

    def write(self, piece: bytes) -> int:
        kept = b"".join(line.strip() for line in piece.splitlines()) if self._on_one_line else piece  # of bytes: texts have other line ends
        self._data.write(kept.decode("utf-8"))
        return len(piece)

    def flush(self) -> None:
        if self._on_one_line:
            self._data.write("\n")
        self._data.flush()


def emit_document(document: bytes) -> None:
    """Print an encoded document, UTF-8."""
    output = DocumentOutput()
    output.write(document)
    output.flush()


def summarise(facts: Row) -> None:
    """Print one JSON object: the result of a job."""
    emit_document((json.dumps(facts, ensure_ascii=False, indent=1) + "\n").encode("utf-8", "backslashreplace"))


def _table(columns: Sequence[Column], rows: Iterable[Row], stream: TextIO, lines_max: int | None) -> str:
    if not stream.isatty():
        table = lay_out(columns, rows, None)
        return "".join(f"{line}\n" for line in (*table.head, *table.body))
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream)
    table = lay_out(columns, rows, console.width)
    room = max(0, lines_max - len(table.head) - 2) if lines_max is not None else len(table.body)
    with console.capture() as printed:  # rich ends the process itself when its reader has gone
        console.print(Text("\n".join(table.head), style="bold"), soft_wrap=True)
        for line in table.body[:room]:
            console.print(Text(line), soft_wrap=True)
        if len(table.body) > room:
            console.print(Text(f"… {len(table.body) - room} more lines"))
        if table.left_out:
            console.print(Text(f"not shown at {console.width} columns: {', '.join(table.left_out)}", style="dim"), soft_wrap=True)
    return printed.get()


def say(message: str) -> None:
    """Print a message to stderr: stdout is for data alone. A closed stderr is no error."""
    with contextlib.suppress(OSError, ValueError):
        click.echo(message, err=True)


class ProgressReport(Protocol):
    def advance(self, done: int, note: str = "") -> None:
        """`done` more of the total are done; `note` names the part in progress."""
        ...


@contextmanager
def progress(title: str, total: int, *, sizes: bool = True) -> Iterator[ProgressReport]:
    """Report progress towards `total` (bytes, or items when not `sizes`): a bar on a terminal, else a plain line every 10 s."""
    if sys.stderr.isatty():
        with _bar(title, total, sizes) as shown:
            yield shown
    else:
        plain = PlainProgress(title, total, as_size if sizes else as_text, sys.stderr)
        yield plain


@dataclass(slots=True)
class PlainProgress:
    """Progress in a log or a pipe: a line every PLAIN_EVERY_S, so none for short work."""

    title: str
    total: int
    text: Callable[[Any], str]
    stream: TextIO
    clock: Callable[[], float] = time.monotonic
    done: int = 0
    started: float = field(init=False)
    said: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.said = self.clock()

    def advance(self, done: int, note: str = "") -> None:
        self.done += done
        now = self.clock()
        if now - self.said >= PLAIN_EVERY_S:
            self.said = now
            left = (now - self.started) * (self.total - self.done) / self.done if self.done else None
            eta = f", {duration_text(left)} left" if left is not None else ""
            with contextlib.suppress(OSError, ValueError):
                print(f"{self.title}: {self.text(self.done)} of {self.text(self.total)}{eta} {note}".rstrip(), file=self.stream, flush=True)


@contextmanager
def _bar(title: str, total: int, sizes: bool) -> Iterator[ProgressReport]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    amount: ProgressColumn = DownloadColumn(binary_units=True) if sizes else MofNCompleteColumn()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        amount,
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.fields[note]}"),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(title, total=total, note="")

        class Shown:
            def advance(self, done: int, note: str = "") -> None:
                bars.update(task, advance=done, note=note[:40])

        yield Shown()
