"""The layout of a table for people: which columns a window shows, and where free text goes.

A number or a state is shown whole or not at all. In a window that is too narrow, free text moves below its row; then long names of
topics are shortened in the middle; then columns are left out, in a stated order; then a long name gets its own line. Without a window, as
in a pipe, a row is one line.
"""

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from headwater.units import duration_text, size_text

Row = Mapping[str, Any]
_GAP = "  "
_INDENT = " " * 4
_NAME_MIN = 20  # a name is not shortened to less, and one that is not longer never is
_FREE_TEXT_MIN = 40  # in a narrower column, free text needs more lines than below its row


def as_text(value: object) -> str:
    return "" if value is None else str(value)


def as_size(value: Any) -> str:
    return "" if value is None else size_text(value)


def as_duration(value: Any) -> str:
    return "" if value is None else duration_text(value)


def as_end(value: Any) -> str:
    """The end offset after a last offset, as Kafka counts: the archive is complete when its end offset is the log's."""
    return "" if value is None else str(value + 1)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: the row's key, the title, and the text of a value.

    free    free text, which may fold or move below its row; the last column, if any
    leaves  its turn to be left out of a narrow window: 1 first, then 2; 0 never
    shrinks  a name in it may be shortened in the middle, before a column is left out; the first column, if any
    """

    key: str
    title: str
    text: Callable[[Any], str] = as_text
    numeric: bool = False
    free: bool = False
    leaves: int = 0
    shrinks: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table as lines of text. left_out: the titles of the columns for which the window is too narrow."""

    head: tuple[str, ...]
    body: tuple[str, ...]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Grid:
    """The columns that are shown side by side, and their widths."""

    columns: tuple[Column, ...]
    widths: tuple[int, ...]

    @property
    def width(self) -> int:
        return sum(self.widths) + len(_GAP) * (len(self.widths) - 1)

    def line(self, cells: Sequence[str]) -> str:
        padded = (_padded(cell, width, column.numeric) for cell, width, column in zip(cells, self.widths, self.columns, strict=True))
        return _GAP.join(padded).rstrip()

    def head(self) -> tuple[str, ...]:
        titles = [textwrap.wrap(column.title, width) for column, width in zip(self.columns, self.widths, strict=True)]
        height = max(map(len, titles))
        return (*(self.line(line) for line in zip(*([""] * (height - len(each)) + each for each in titles), strict=True)), "─" * self.width)


def lay_out(columns: Sequence[Column], rows: Iterable[Row], width: int | None) -> Table:
    """Lines of at most `width` cells, unless a name or a value alone is longer. None: no window."""
    cells = [{column.key: _printable(column.text(row.get(column.key))) for column in columns} for row in rows]
    free = next((column for column in columns if column.free and any(row[column.key] for row in cells)), None)
    shown = [column for column in columns if not column.free]
    if free and (whole := _beside(shown, free, cells, width)):
        return Table(whole.head(), tuple(_folded(whole, cells)))
    left_out: list[str] = []
    while True:
        for grid in (_grid(shown, cells), _grid(shown, cells, fold_titles=True)):
            if width is None or grid.width <= width:
                return Table(grid.head(), tuple(_with_notes(grid, free, cells, width)), tuple(left_out))
        if shown[0].shrinks and (shrunk := _shrunk(shown[0], cells, grid.widths[0] - (grid.width - (width or 0)))):
            grid = _grid(shown, shrunk, fold_titles=True)
            return Table(grid.head(), tuple(_with_notes(grid, free, shrunk, width)), tuple(left_out))
        leaving = min((column for column in shown if column.leaves), key=lambda column: column.leaves, default=None)
        if leaving is None:
            break
        shown.remove(leaving)
        left_out.append(leaving.title)
    assert width is not None
    room = width - (grid.width - grid.widths[0])
    if room >= _longest_word(shown[0].title):  # with long names on their own lines the rest fits; else lines are longer than the window
        grid = _Grid(grid.columns, (room, *grid.widths[1:]))
    return Table(grid.head(), tuple(_with_notes(grid, free, cells, width)), tuple(left_out))


def _shrunk(column: Column, cells: Sequence[Mapping[str, str]], width: int) -> list[Mapping[str, str]] | None:
    """Return `cells` with names of at most `width`; None where that is too short, or names would become the same."""
    if width < _NAME_MIN:
        return None
    names = {row[column.key]: _shortened(row[column.key], width) for row in cells}
    if len(set(names.values())) < len(names):
        return None
    return [{**row, column.key: names[row[column.key]]} for row in cells]


def _shortened(name: str, width: int) -> str:
    if len(name) <= width or not name.isascii():
        return name
    tail = (width - 1) // 2
    return f"{name[: width - 1 - tail]}…{name[-tail:]}"


def _beside(shown: Sequence[Column], free: Column, cells: Sequence[Mapping[str, str]], width: int | None) -> _Grid | None:
    """The grid with free text as its last column; None when that column would be too narrow."""
    texts = [free.title, *(row[free.key] for row in cells)]
    longest = max(map(_cells, texts))
    least = max(_longest_word(text) for text in texts)
    for grid in (_grid(shown, cells), _grid(shown, cells, fold_titles=True)):
        left = longest if width is None else min(longest, width - grid.width - len(_GAP))
        if left >= max(least, min(longest, _FREE_TEXT_MIN)):
            return _Grid((*grid.columns, free), (*grid.widths, left))
    return None


def _grid(shown: Sequence[Column], cells: Sequence[Mapping[str, str]], *, fold_titles: bool = False) -> _Grid:
    titles = (_longest_word(column.title) if fold_titles else len(column.title) for column in shown)
    widths = (max([title, *(_cells(row[column.key]) for row in cells)]) for title, column in zip(titles, shown, strict=True))
    return _Grid(tuple(shown), tuple(widths))


def _folded(grid: _Grid, cells: Sequence[Mapping[str, str]]) -> Iterable[str]:
    """Rows whose last column is free text."""
    *names, free = (column.key for column in grid.columns)
    for row in cells:
        first, *rest = _wrapped(row[free], grid.widths[-1]) or [""]
        yield grid.line([*(row[name] for name in names), first])
        yield from (grid.line([*([""] * len(names)), line]) for line in rest)


def _with_notes(grid: _Grid, free: Column | None, cells: Sequence[Mapping[str, str]], width: int | None) -> Iterable[str]:
    """Rows with their free text below them: once for successive rows that share it."""
    for note, group in groupby(cells, key=lambda row: row[free.key] if free else ""):
        rows = list(group)
        for row in rows:
            name, *others = (row[column.key] for column in grid.columns)
            if _cells(name) > grid.widths[0]:
                yield name
                name = ""
            yield grid.line([name, *others])
        if note:
            prefix = "" if len(rows) == 1 else f"the {len(rows)} rows above: "
            room = max((width or 0) - len(_INDENT), _FREE_TEXT_MIN)
            yield from (_INDENT + line for line in _wrapped(prefix + note, room))


def _wrapped(text: str, width: int) -> list[str]:
    """Lines that break between words only, so that a path can be copied from them."""
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def _padded(cell: str, width: int, numeric: bool) -> str:
    space = " " * (width - _cells(cell))
    return space + cell if numeric else cell + space


def _longest_word(text: str) -> int:
    return max(map(_cells, text.split()), default=0)


def _printable(text: str) -> str:
    """One line without characters that control a terminal."""
    return "".join(each if each.isprintable() else " " for each in text)


def _cells(text: str) -> int:
    """How many cells of a terminal `text` takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
