"""Data to stdout in three forms, progress to stderr."""

import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headwater.columns import Column, as_size
from headwater.output import PIECE_BYTES, DocumentOutput, PlainProgress, as_base64, emit

COLUMNS = (Column("topic", "topic"), Column("size_bytes", "bytes", as_size, numeric=True))
ROWS: list[dict[str, Any]] = [
    {"topic": "recipes.zstd", "size_bytes": 2048, "extra": None},
    {"topic": "photos", "size_bytes": None, "extra": 1},
]


def printed(form: str) -> str:
    out = io.StringIO()
    emit(form, COLUMNS, iter(ROWS), out=out)
    return out.getvalue()


def test_json_forms_carry_every_key() -> None:
    assert json.loads(printed("json")) == ROWS
    assert [json.loads(line) for line in printed("jsonl").splitlines()] == ROWS


def test_a_table_shows_its_columns_and_no_line_is_cut() -> None:
    text = printed("table")
    assert "recipes.zstd" in text
    assert "2.0 KiB" in text
    assert "extra" not in text
    wide = io.StringIO()
    emit("table", (Column("name", "name"),), [{"name": "n" * 500}], out=wide)
    assert "n" * 500 in wide.getvalue()


def test_no_rows_are_an_empty_list() -> None:
    out = io.StringIO()
    emit("json", COLUMNS, [], out=out)
    assert json.loads(out.getvalue()) == []


def test_plain_progress_says_a_line_every_ten_seconds_with_what_is_left() -> None:
    now = [0.0]
    out = io.StringIO()
    plain = PlainProgress("archiving", 4096, as_size, out, lambda: now[0])
    for _ in range(4):
        now[0] += 6
        plain.advance(1024, "photos:0")
    assert out.getvalue().splitlines() == [
        "archiving: 2.0 KiB of 4.0 KiB, 12.0 s left photos:0",
        "archiving: 4.0 KiB of 4.0 KiB, 0.0 s left photos:0",
    ]


@pytest.mark.parametrize("on_one_line", [False, True])
def test_a_document_keeps_every_character(on_one_line: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Groups and topics have texts of their own, and JSON has line separators of Unicode in them as they are."""
    rows = [{"text": f"a{separator}  b "} for separator in "\u0085\u2028\u2029\x0b"]
    document = msgspec.json.format(msgspec.json.encode(rows), indent=1) + b"\n"
    output = DocumentOutput(on_one_line=on_one_line)
    for line in document.splitlines(keepends=True):
        assert output.write(line) == len(line)
    output.flush()
    printed = capsys.readouterr().out
    assert msgspec.json.decode(printed) == rows
    assert printed.count("\n") == (1 if on_one_line else document.count(b"\n"))


@pytest.mark.parametrize("size_bytes", [0, 1, 2, 3, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES + 5])
def test_a_long_value_is_printed_as_a_short_one_is(size_bytes: int) -> None:
    row = {"topic": 'a "b" é', "offset": 5, "key": None, "value": b"\xfe" * size_bytes, "headers": [["n", b"\x00\xff"], ["m", None]]}
    whole = {**row, "value": as_base64(b"\xfe" * size_bytes), "headers": [["n", "AP8="], ["m", None]]}
    out, expected = io.StringIO(), io.StringIO()
    emit("jsonl", (), [row], out=out)
    emit("jsonl", (), [whole], out=expected)
    assert out.getvalue() == expected.getvalue() == json.dumps(whole, ensure_ascii=False) + "\n"
    for stream, printed in ((out, row), (expected, whole)):
        stream.seek(0)
        stream.truncate()
        emit("json", (), [printed], out=stream)
    assert out.getvalue() == expected.getvalue()


def test_a_long_value_is_not_in_memory_as_text(tmp_path: Path) -> None:
    row = {"value": bytes(32 << 20)}
    with open(tmp_path / "out", "w") as out:
        tracemalloc.start()
        try:
            emit("jsonl", (), [row], out=out)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak_bytes < 8 << 20
    assert (tmp_path / "out").stat().st_size > 42 << 20
