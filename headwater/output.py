"""What verbs say: data to stdout as a table, JSON or JSON lines; talk and progress to stderr."""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TextIO

import click

from headwater.units import duration_text, size_text

PLAIN_EVERY_S = 10.0
Row = Mapping[str, Any]
_PIPE_WIDTH = 10_000  # nobody's window: a line is never cut for a pipe

format_option = click.option(
    "-o", "--output", "form", type=click.Choice(["table", "json", "jsonl"]), default="table", show_default=True, help="How to print."
)


def as_text(value: object) -> str:
    return "" if value is None else str(value)


def as_size(value: Any) -> str:
    return "" if value is None else size_text(value)


def as_duration(value: Any) -> str:
    return "" if value is None else duration_text(value)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: the row's key, its title, and how its values read."""

    key: str
    title: str
    text: Callable[[Any], str] = as_text
    numeric: bool = False


def emit(form: str, columns: Sequence[Column], rows: Iterable[Row], *, title: str | None = None, out: TextIO | None = None) -> None:
    """Print `rows`. JSON forms carry every key of a row; a table shows `columns`. JSON lines stream."""
    stream = out or sys.stdout
    if form == "jsonl":
        for row in rows:
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
    elif form == "json":
        stream.write(json.dumps(list(rows), ensure_ascii=False, indent=1) + "\n")
    else:
        _table(columns, rows, title, stream)
    stream.flush()


def summarise(facts: Row) -> None:
    """Print one JSON object: what a job came to."""
    sys.stdout.write(json.dumps(facts, ensure_ascii=False, indent=1) + "\n")
    sys.stdout.flush()


def _table(columns: Sequence[Column], rows: Iterable[Row], title: str | None, stream: TextIO) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(file=stream) if stream.isatty() else Console(file=stream, width=_PIPE_WIDTH)
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column.title, justify="right" if column.numeric else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(column.text(row.get(column.key)) for column in columns))
    console.print(table)


def say(message: str) -> None:
    """Talk: to stderr, so that stdout stays data."""
    click.echo(message, err=True)


class Progress(Protocol):
    def advance(self, done: int, note: str = "") -> None:
        """`done` more of the total; `note` says what is being worked on."""
        ...


@contextmanager
def progress(title: str, total: int, *, sizes: bool = True) -> Iterator[Progress]:
    """Report the way to `total` (bytes, or things when not `sizes`): a bar on a terminal, else a plain line every 10 s."""
    if sys.stderr.isatty():
        with _bar(title, total, sizes) as shown:
            yield shown
    else:
        plain = PlainProgress(title, total, as_size if sizes else as_text, sys.stderr)
        yield plain


@dataclass(slots=True)
class PlainProgress:
    """For logs and pipes: one line now and then, none for what is done at once."""

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
            print(f"{self.title}: {self.text(self.done)} of {self.text(self.total)}{eta} {note}".rstrip(), file=self.stream, flush=True)


@contextmanager
def _bar(title: str, total: int, sizes: bool) -> Iterator[Progress]:
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
