"""docs/acceptance.md: the tests that it names exist, every row has a test, and every listing is in its table."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/acceptance.md").read_text(encoding="utf-8")
ROWS = {row.split(" | ")[0].strip("| "): row for row in PAGE.splitlines() if re.match(r"\| R\d+ \|", row)}
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))
MEASURED = {"R1"}


def test_every_row_exists_and_names_a_test_unless_it_is_measured():
    assert list(ROWS) == [f"R{number}" for number in range(1, 29)]
    assert {name for name, row in ROWS.items() if "`tests/" not in row} == MEASURED


@pytest.mark.parametrize(("file", "name"), NAMED, ids=lambda value: value)
def test_a_test_that_the_page_names_exists(file, name):
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def test_every_listing_is_named_on_the_page():
    listings = {path.name for path in (ROOT / "tests/assets/seeds").iterdir()}
    assert {name for name in listings if f"`{name}`" not in PAGE} == set()
