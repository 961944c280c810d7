"""What a table shows in a window of some width."""

import pytest

from headwater.columns import Column, Row, Table, as_end, as_size, lay_out

COLUMNS = (
    Column("topic", "topic"),
    Column("start", "archive start", numeric=True, leaves=2),
    Column("end", "archive end", numeric=True),
    Column("cached", "cached", as_size, numeric=True, leaves=1),
    Column("state", "state"),
    Column("reason", "reason", free=True),
)
ROWS: tuple[Row, ...] = (
    {
        "topic": "orders",
        "start": 1234567890,
        "end": 9876543210,
        "cached": 2048,
        "state": "needs replacement",
        "reason": "one two three " * 9,
    },
    {"topic": "t", "start": 0, "end": 1, "cached": 0, "state": "archived", "reason": ""},
)
WHOLE = [["orders", "9876543210", "needs replacement"], ["t", "1", "archived"]]


def laid_out(width: int | None, rows: tuple[Row, ...] = ROWS) -> Table:
    return lay_out(COLUMNS, rows, width)


@pytest.mark.parametrize("width", [46, 52, 60, 70, 80, 90, 120, 200, None])
def test_numbers_names_and_states_are_whole_and_fit_at_any_width(width: int | None) -> None:
    table = laid_out(width)
    for row in WHOLE:
        assert any(all(cell in line for cell in row) for line in table.body), table.body
    assert "one two three one two three" in " ".join(" ".join(table.body).split())
    assert width is None or max(map(len, (*table.head, *table.body))) <= width


def test_columns_leave_in_their_order() -> None:
    shown = [laid_out(width).left_out for width in (200, 58, 57, 49, 48, 20)]
    assert shown == [(), (), ("cached",), ("cached",), ("cached", "archive start"), ("cached", "archive start")]


def test_a_row_is_one_line_where_there_is_no_window() -> None:
    table = laid_out(None)
    assert len(table.head) == 2
    assert len(table.body) == 2
    assert table.body[0].endswith("one two three")


def test_titles_fold_before_a_column_leaves() -> None:
    assert [line.split() for line in laid_out(61).head[:-1]] == [["archive", "archive"], ["topic", "start", "end", "cached", "state"]]


def test_free_text_folds_beside_its_row_where_there_is_room() -> None:
    beside = laid_out(120)
    assert "reason" in beside.head[-2]
    assert len(beside.body) > 2
    starts = {line.index("one") if "one" in line else line.index("two") for line in beside.body[:2]}
    assert len(starts) == 1
    below = laid_out(80)
    assert "reason" not in below.head[-2]
    assert below.body[1].startswith("    one two")


def test_successive_rows_share_a_note() -> None:
    rows = [{"topic": f"t{at}", "state": "waiting", "reason": "for a seal" if at < 3 else "for time"} for at in range(4)]
    table = lay_out(COLUMNS[:1] + COLUMNS[4:], rows, 20)
    assert table.body == (
        "t0     waiting",
        "t1     waiting",
        "t2     waiting",
        "    the 3 rows above: for a seal",
        "t3     waiting",
        "    for time",
    )


def test_a_long_name_gets_a_line_of_its_own_and_the_others_stay_in_a_row() -> None:
    name = "n" * 70
    table = lay_out(COLUMNS, [*ROWS, {**ROWS[1], "topic": name, "end": 77}], 60)
    at = table.body.index(name)
    assert table.body[at + 1].split() == ["77", "archived"]
    assert any(line.split() == ["t", "1", "archived"] for line in table.body)


def test_a_value_longer_than_the_window_is_not_cut() -> None:
    path = "/a-directory/" * 30
    table = lay_out((Column("key", "setting"), Column("value", "value")), [{"key": "log.dirs", "value": path}], 80)
    assert table.body == (f"log.dirs  {path}",)


def test_a_path_in_free_text_is_not_broken() -> None:
    path = "/var/lib/a-very-long-name/" * 5
    table = lay_out(COLUMNS, [{"topic": "t", "state": "stopped", "reason": f"it is in {path} and stays"}], 80)
    assert f"    {path}" in table.body


def test_a_value_cannot_steer_the_terminal_or_break_its_row() -> None:
    table = lay_out(COLUMNS[4:], [{"state": "stopped", "reason": "a\nb\x1b[2Jc"}], None)
    assert table.body == ("stopped  a b [2Jc",)


def test_wide_characters_take_two_cells() -> None:
    table = lay_out(COLUMNS[:1] + COLUMNS[2:3], [{"topic": "注文", "end": 5}, {"topic": "abcdefgh", "end": 5}], 80)
    assert table.body == ("注文                5", "abcdefgh            5")


def test_a_table_without_rows_has_its_titles() -> None:
    assert laid_out(80, ()).head[0].startswith("topic")


def test_an_end_is_the_offset_after_the_last() -> None:
    assert (as_end(None), as_end(-1), as_end(9)) == ("", "0", "10")


NAMED = (Column("topic", "topic", shrinks=True), *COLUMNS[1:])
LONG = {**ROWS[1], "topic": "team-billing.invoices.created.v2-dead-letter", "start": 7}


def test_a_long_name_is_shortened_before_a_column_leaves() -> None:
    whole = lay_out(NAMED, [LONG], 200)
    assert LONG["topic"] in whole.body[0]
    table = lay_out(NAMED, [LONG, ROWS[1]], 60)
    assert table.left_out == ()
    assert table.body[0].split() == ["team-billing…dead-letter", "7", "1", "0", "B", "archived"]
    assert max(map(len, (*table.head, *table.body))) <= 60
    assert lay_out(COLUMNS, [LONG, ROWS[1]], 60).left_out, "only where a name may be shortened"


def test_names_are_not_shortened_to_one_and_the_same() -> None:
    names = [f"{'a' * 20}-{middle}-{'b' * 20}" for middle in "xy"]
    table = lay_out(NAMED, [{**LONG, "topic": name} for name in names], 60)
    assert all(name in " ".join(table.body) for name in names)
