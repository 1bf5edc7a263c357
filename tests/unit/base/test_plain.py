"""Conversion of dataclasses to plain data and back."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.base.errors import ContractError
from clary.base.plain import from_plain, to_plain


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True)
class Leaf:
    at: datetime
    weight: float = 1.0
    colour: Colour | None = None


@dataclass(frozen=True, kw_only=True)
class Tree:
    name: str
    size: int = 0
    is_tall: bool = False
    leaves: tuple[Leaf, ...] = ()
    notes: list[str] = field(default_factory=list)
    by_name: Mapping[str, Leaf] = field(default_factory=dict)
    anything: Any = None
    free: Mapping[str, Any] = field(default_factory=dict)
    parent: "Tree | None" = None


NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
times = st.datetimes(timezones=st.just(UTC))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
leaves = st.builds(Leaf, at=times, weight=st.floats(allow_nan=False), colour=st.none() | st.sampled_from(Colour))
trees = st.builds(
    Tree,
    name=st.text(),
    size=st.integers(),
    is_tall=st.booleans(),
    leaves=st.lists(leaves, max_size=3).map(tuple),
    notes=st.lists(st.text(), max_size=3),
    by_name=st.dictionaries(st.text(), leaves, max_size=3),
    anything=json_values,
    free=st.dictionaries(st.text(), json_values, max_size=3),
    parent=st.none() | st.builds(Tree, name=st.text()),
)


@given(trees)
def test_a_value_survives_json_unchanged(tree: Tree) -> None:
    assert from_plain(Tree, json.loads(json.dumps(to_plain(tree)))) == tree


def test_times_are_written_in_utc() -> None:
    there = datetime(2026, 1, 2, 14, tzinfo=timezone(timedelta(hours=2)))
    assert to_plain(Leaf(at=there))["at"] == "2026-01-02T12:00:00+00:00"


def test_plain_data_shares_no_container_with_the_value() -> None:
    inner = {"a": [1]}
    plain = to_plain(Tree(name="t", free=inner))
    plain["free"]["a"].append(2)
    assert inner == {"a": [1]}


def test_unknown_keys_are_ignored_and_absent_ones_take_their_defaults() -> None:
    assert from_plain(Tree, {"name": "t", "from_the_future": 1}) == Tree(name="t")


@dataclass(frozen=True)
class Columns:
    numbers: tuple[float | None, ...] = ()
    counts: list[int] = field(default_factory=list)
    names: tuple[str, ...] = ()


def test_items_of_lists_of_numbers_are_converted_like_single_numbers() -> None:
    found = from_plain(Columns, {"numbers": [1, None, 2.5], "counts": [1, True], "names": ["a"]})
    assert found == Columns(numbers=(1.0, None, 2.5), counts=[1, True], names=("a",))
    assert [type(number) for number in found.numbers] == [float, type(None), float]
    assert from_plain(Columns, to_plain(found)) == found
    counts = [1, 2]
    assert from_plain(Columns, {"counts": counts}).counts is not counts
    for bad, words in (
        ({"numbers": [1.0, True]}, r"Columns.numbers\[1\]: expected float, got bool"),
        ({"numbers": [1.0, "2"]}, r"Columns.numbers\[1\]: expected float, got str"),
        ({"counts": [1, None]}, r"Columns.counts\[1\]: expected int, got NoneType"),
        ({"counts": [1, 2.0]}, r"Columns.counts\[1\]: expected int, got float"),
        ({"names": ["a", 3]}, r"Columns.names\[1\]: expected str, got int"),
    ):
        with pytest.raises(ContractError, match=words):
            from_plain(Columns, bad)


def test_whole_numbers_become_floats_where_floats_are_declared() -> None:
    leaf = from_plain(Leaf, {"at": NOON.isoformat(), "weight": 2})
    assert (leaf.weight, type(leaf.weight)) == (2.0, float)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "Tree.name is missing"),
        ([], "Tree: expected an object, got list"),
        ({"name": 5}, "Tree.name: expected str, got int '5'"),
        ({"name": None}, "Tree.name: expected str, got NoneType"),
        ({"name": "t", "leaves": {}}, "Tree.leaves: expected a list, got dict"),
        ({"name": "t", "leaves": [{"at": NOON.isoformat()}, {}]}, r"Tree.leaves\[1\].at is missing"),
        ({"name": "t", "leaves": [{"at": "noon"}]}, r"Tree.leaves\[0\].at: expected an ISO 8601 time, got str 'noon'"),
        ({"name": "t", "leaves": [{"at": "2026-01-02T12:00:00"}]}, r"at: expected an ISO 8601 time with its zone"),
        ({"name": "t", "leaves": [{"at": "0001-01-01T00:00:00+23:59"}]}, r"at: expected an ISO 8601 time, got"),
        ({"name": "t", "leaves": [{"at": NOON.isoformat(), "weight": 10**400}]}, r"expected float, got a whole number"),
        ({"name": "t", "leaves": [{"at": NOON.isoformat(), "colour": ["pink"]}]}, r"colour: .* is not a valid"),
        ({"name": "t", "leaves": [{"at": 12}]}, r"Tree.leaves\[0\].at: expected an ISO 8601 time, got int '12'"),
        (
            {"name": "t", "by_name": {"x": {"at": NOON.isoformat(), "weight": True}}},
            "Tree.by_name.x.weight: expected f",
        ),
        (
            {"name": "t", "by_name": {"x": {"at": NOON.isoformat(), "colour": "pink"}}},
            "x.colour: 'pink' is not a valid",
        ),
        ({"name": "t", "free": 1}, "Tree.free: expected an object, got int"),
        ({"name": "t", "parent": {"name": 1}}, "Tree.parent.name: expected str"),
    ],
)
def test_a_value_of_the_wrong_type_is_named_by_its_path(data: Any, words: str) -> None:
    with pytest.raises(ContractError, match=words):
        from_plain(Tree, data)


def test_a_value_nested_too_deeply_is_refused() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    for data in ({"name": deep}, {"name": "t", "leaves": [{"at": NOON.isoformat(), "colour": deep}]}):
        with pytest.raises(ContractError, match="nested too deeply"):
            from_plain(Tree, data)


def test_a_type_without_plain_form_is_refused() -> None:
    with pytest.raises(ContractError, match="object has no plain form"):
        to_plain({"key": object()})
