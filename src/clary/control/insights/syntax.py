"""The commands of a query as data.

Where: `reading` creates them, `planning` turns them into a plan. Places are positions in the query's text.
"""

from __future__ import annotations

from dataclasses import dataclass

from clary.control.insights.automaton import Automaton

Number = int | float


@dataclass(frozen=True)
class Place:
    """Index of the first character of a part of the query, and the index after its last character."""

    start: int
    end: int


@dataclass(frozen=True)
class Field:
    """A field by its name, or a column by its alias."""

    name: str
    place: Place

    @property
    def label(self) -> str:
        """The column name if the query gives no alias."""
        return self.name


@dataclass(frozen=True)
class Bin:
    """The time of a line, rounded down."""

    width_ms: int
    label: str  # bin(5m)
    place: Place


@dataclass(frozen=True)
class Item:
    """One field or time bin to show or to group by."""

    source: Field | Bin
    label: str


@dataclass(frozen=True)
class Literal:
    """A text or a number of the query."""

    value: str | Number


Operand = Field | Literal


@dataclass(frozen=True)
class Comparison:
    """Two operands and one of = != < <= > >=."""

    left: Operand
    operator: str
    right: Operand


@dataclass(frozen=True)
class Like:
    """Condition that a field contains a text, or that a regular expression matches somewhere in it."""

    field: Field
    pattern: str | Automaton


@dataclass(frozen=True)
class In:
    """Condition that a field equals one of several values."""

    field: Field
    values: tuple[str | Number, ...]


@dataclass(frozen=True)
class IsPresent:
    """Condition that a line has a field."""

    field: Field


@dataclass(frozen=True)
class Not:
    """The opposite of a condition."""

    condition: Condition


@dataclass(frozen=True)
class All:
    """Conditions joined by `and`."""

    conditions: tuple[Condition, ...]


@dataclass(frozen=True)
class Any:
    """Conditions joined by `or`."""

    conditions: tuple[Condition, ...]


Condition = Comparison | Like | In | IsPresent | Not | All | Any


@dataclass(frozen=True)
class Fields:
    """Show these items in addition to the items of earlier commands."""

    items: tuple[Item, ...]
    place: Place


@dataclass(frozen=True)
class Display:
    """Show only these items."""

    items: tuple[Item, ...]
    place: Place


@dataclass(frozen=True)
class Filter:
    """Keep lines for which a condition holds."""

    condition: Condition
    place: Place


@dataclass(frozen=True)
class SortKey:
    """One field to sort by, with its direction."""

    source: Field | Bin
    is_descending: bool


@dataclass(frozen=True)
class Sort:
    """Order rows."""

    keys: tuple[SortKey, ...]
    place: Place


@dataclass(frozen=True)
class Limit:
    """Keep the first rows."""

    count: int
    place: Place


@dataclass(frozen=True)
class Aggregate:
    """One number computed from all lines of a group."""

    function: str
    field: Field | None  # None for count(*)
    label: str


@dataclass(frozen=True)
class Stats:
    """Make one row of each group of lines."""

    aggregates: tuple[Aggregate, ...]
    groups: tuple[Item, ...]
    place: Place


Command = Fields | Display | Filter | Sort | Limit | Stats
