"""Tables on screens: long cells are folded without losing text."""

import itertools

import pytest

from clary.cli.tables import table

HEADER = ("NAME", "STATUS", "WHAT")


def words_of(text):
    return "".join(text.split())


def test_a_table_that_fits_is_the_same_with_and_without_a_width():
    rows = [("a", "done", "nothing"), ("b", "failed", "")]
    assert table(HEADER, rows, width=80) == table(HEADER, rows)


def test_the_widest_column_is_folded_first():
    rows = [("job-1", "done", "one two three four five six seven eight")]
    assert table(HEADER, rows, width=36).splitlines() == [
        "NAME   STATUS  WHAT",
        "job-1  done    one two three four",
        "               five six seven eight",
    ]


def test_a_cell_that_is_folded_keeps_its_indent():
    folded = table(("  NAME", "N"), [("  " + "word " * 6, "1")], width=20).splitlines()
    assert all(line.startswith("  word") for line in folded[1:])
    assert folded[1].endswith("1")


@pytest.mark.parametrize("lengths", itertools.product((0, 5, 30, 200), repeat=3))
def test_any_long_table_fits_the_width_and_loses_no_text(lengths):
    row = tuple(letter * length for letter, length in zip("abc", lengths, strict=True))
    told = table(HEADER, [row, row], width=80)
    assert max(map(len, told.splitlines())) <= 80
    assert sorted(words_of(told)) == sorted(words_of(table(HEADER, [row, row])))


def test_columns_keep_a_readable_minimum_width():
    row = ("x" * 40, "y" * 40, "z" * 40)
    assert max(map(len, table(HEADER, [row], width=10).splitlines())) == 3 * 12 + 4
