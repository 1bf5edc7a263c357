"""A regular expression as a nondeterministic automaton: numbered places, and the transitions between them.

Where: `automaton` runs it. The syntax tree is the one that `re` compiles; a place is a bit of an integer, so that a set
of places is one number.
"""

from __future__ import annotations

import importlib
import re
import warnings
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any

MAX_EXPRESSION_LENGTH = 1_000
MAX_PLACES = 300  # of one expression; x{100} has 201
MAX_PLAIN_LENGTH = 64  # bounds the steps of `re`, which holds the interpreter lock, to this times a line's length
_ENDLESS = 1 << 30  # more than any count that fits
_WORD = frozenset("0123456789_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_CATEGORIES = {
    "CATEGORY_DIGIT": frozenset("0123456789"),
    "CATEGORY_SPACE": frozenset(" \t\n\r\f\v"),
    "CATEGORY_WORD": _WORD,
}
_REFUSED = {
    "ASSERT": "(?= and (?<=, which look ahead or behind",
    "ASSERT_NOT": "(?! and (?<!, which look ahead or behind",
    "GROUPREF": "back references",
    "GROUPREF_EXISTS": "conditional groups",
    "ATOMIC_GROUP": "atomic groups",
    "POSSESSIVE_REPEAT": "possessive repetitions",
}


class BadExpression(ValueError):
    """A regular expression that is wrong, too long, or uses syntax that is not offered."""


class Edge(IntEnum):
    """The kind of character before or after a position in the text, as far as assertions of the expression need it."""

    BORDER = 0  # start or end of the text
    LINE_END = 1
    WORD = 2
    OTHER = 3


@dataclass(frozen=True)
class Surroundings:
    """The kinds of character before and after a position in the text."""

    before: Edge
    after: Edge

    def allow(self, assertion: str) -> bool:
        """Whether an assertion holds between these characters."""
        match assertion:
            case "AT_BEGINNING" | "AT_BEGINNING_STRING":
                return self.before is Edge.BORDER
            case "AT_BEGINNING_LINE":
                return self.before in (Edge.BORDER, Edge.LINE_END)
            case "AT_END" | "AT_END_STRING":
                return self.after is Edge.BORDER
            case "AT_END_LINE":
                return self.after in (Edge.BORDER, Edge.LINE_END)
            case _:
                is_boundary = (self.before is Edge.WORD) is not (self.after is Edge.WORD)
                return is_boundary is (assertion == "AT_BOUNDARY")


@dataclass(frozen=True)
class CharacterSet:
    """Characters that one place of the expression consumes."""

    ranges: tuple[tuple[int, int], ...] = ()
    categories: tuple[str, ...] = ()
    is_negated: bool = False
    ignores_case: bool = False

    def __contains__(self, character: str) -> bool:
        has = self._has(character)
        if not has and self.ignores_case and character.isascii():
            has = self._has(character.swapcase())
        return has is not self.is_negated

    def _has(self, character: str) -> bool:
        code = ord(character)
        if any(first <= code <= last for first, last in self.ranges):
            return True
        return any(_in_category(character, name) for name in self.categories)


class Parts:
    """The places of one expression; made by `compile_parts`."""

    def __init__(self) -> None:
        self.sets: list[CharacterSet] = []
        # Each place has one of: a set's number and the next place, an assertion and the next place, or next places.
        self.takes: list[tuple[int, int] | None] = []
        self.asserts: list[tuple[str, int] | None] = []
        self.leads: list[tuple[int, ...]] = []
        self.begin = 0
        self.end_place = 0
        self.has_no_choice = False
        self._asks_edges = False

    def add(
        self,
        *,
        takes: tuple[CharacterSet, int] | None = None,
        asserts: tuple[str, int] | None = None,
        leads: tuple[int, ...] = (),
    ) -> int:
        """Add a place and return its number; raises BadExpression if there are too many.

        Args:
            takes: characters that the place consumes, and the next place; None if it consumes no character.
            asserts: name of an assertion as `re` spells it, such as AT_END, and the next place.
            leads: places that are reached from this place without a character.
        """
        if len(self.takes) >= MAX_PLACES:
            raise BadExpression(f"it is too large: expected at most {MAX_PLACES} parts, counting repetitions")
        taken = None
        if takes is not None:
            if takes[0] not in self.sets:
                self.sets.append(takes[0])
            taken = (self.sets.index(takes[0]), takes[1])
        self._asks_edges = self._asks_edges or asserts is not None
        self.takes.append(taken)
        self.asserts.append(asserts)
        self.leads.append(leads)
        return len(self.takes) - 1

    def edge_of(self, character: str) -> Edge:
        """Return the kind of a character next to a position; always OTHER if the expression has no assertions."""
        if not self._asks_edges:
            return Edge.OTHER
        if character == "\n":
            return Edge.LINE_END
        return Edge.WORD if character in _WORD else Edge.OTHER

    def class_of(self, character: str) -> tuple[bool, ...]:
        """Return for each set whether it contains a character: characters of one class lead to the same places."""
        return tuple(character in known for known in self.sets)

    def reached(self, places: int, around: Surroundings) -> int:
        """Return all places that can be reached from these places without consuming a character."""
        reached = 0
        waiting = _numbers(places)
        while waiting:
            place = waiting.pop()
            if reached >> place & 1:
                continue
            reached |= 1 << place
            asserted = self.asserts[place]
            if asserted is not None:
                if around.allow(asserted[0]):
                    waiting.append(asserted[1])
            else:
                waiting.extend(self.leads[place])
        return reached

    def moved(self, reached: int, kind: tuple[bool, ...]) -> int:
        """Return the places that follow these places after a character of a class."""
        places = 0
        for place in _numbers(reached):
            taken = self.takes[place]
            if taken is not None and kind[taken[0]]:
                places |= 1 << taken[1]
        return places

    def has_end(self, reached: int) -> bool:
        """Whether the end of the expression is among these places."""
        return bool(reached >> self.end_place & 1)

    def ends_in(self, places: int, around: Surroundings) -> bool:
        """Whether the end can be reached without a further character."""
        return self.has_end(self.reached(places, around))


def compile_parts(expression: str) -> Parts:
    """Return the places of an expression.

    Raises: BadExpression.
    """
    if len(expression) > MAX_EXPRESSION_LENGTH:
        raise BadExpression(f"it has {len(expression)} characters, expected at most {MAX_EXPRESSION_LENGTH}")
    # `re` itself compiles from this tree; its parser has no public name.
    parser: Any = importlib.import_module("re._parser")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = parser.parse(expression, re.ASCII)
            flags = int(tree.state.flags)
            parts = Parts()
            parts.end_place = parts.add()
            parts.begin = 1 << _sequence(parts, list(tree), parts.end_place, flags)
    except RecursionError:
        raise BadExpression("its groups are nested too deeply") from None
    except (re.error, OverflowError) as error:
        raise BadExpression(str(error)) from None
    parts.has_no_choice = len(expression) <= MAX_PLAIN_LENGTH and _has_no_choice(list(tree))
    return parts


def _sequence(parts: Parts, items: list[Any], following: int, flags: int) -> int:
    """Add places for items one after the other, from the last item to the first; return the first item's place."""
    for operation, argument in reversed(items):
        following = _item(parts, str(operation), argument, following, flags)
    return following


def _item(parts: Parts, name: str, argument: Any, following: int, flags: int) -> int:
    ignores_case = bool(flags & re.IGNORECASE)
    if name in ("LITERAL", "NOT_LITERAL"):
        one = CharacterSet(((argument, argument),), is_negated=name != "LITERAL", ignores_case=ignores_case)
        return parts.add(takes=(one, following))
    if name == "ANY":
        ranges = () if flags & re.DOTALL else ((10, 10),)
        return parts.add(takes=(CharacterSet(ranges, is_negated=True), following))
    if name == "IN":
        return parts.add(takes=(_set_of(argument, ignores_case=ignores_case), following))
    if name == "AT":
        return parts.add(asserts=(_assertion(str(argument), flags), following))
    if name == "BRANCH":
        ways = tuple(_sequence(parts, list(way), following, flags) for way in argument[1])
        return parts.add(leads=ways)
    if name == "SUBPATTERN":
        _, more, less, body = argument
        return _sequence(parts, list(body), following, (flags | more) & ~less)
    if name in ("MAX_REPEAT", "MIN_REPEAT"):
        return _repetition(parts, argument, following, flags)
    raise BadExpression(f"{_REFUSED.get(name, name)} are not offered in log queries")


def _repetition(parts: Parts, argument: Any, following: int, flags: int) -> int:
    least, most, body = int(argument[0]), int(argument[1]), list(argument[2])
    one_round = partial(_sequence, parts, body, flags=flags)
    if most >= _ENDLESS:
        loop = parts.add()
        parts.leads[loop] = (one_round(following=loop), following)
        following = loop
    else:
        end = following
        for _ in range(most - least):
            following = parts.add(leads=(one_round(following=following), end))
    for _ in range(least):
        # Each round adds a place, even if it takes no character: this bounds the counts.
        following = parts.add(leads=(one_round(following=following),))
    return following


def _set_of(argument: Any, *, ignores_case: bool) -> CharacterSet:
    ranges: list[tuple[int, int]] = []
    categories: list[str] = []
    is_negated = False
    for operation, value in argument:
        match str(operation):
            case "NEGATE":
                is_negated = True
            case "LITERAL":
                ranges.append((value, value))
            case "RANGE":
                ranges.append((value[0], value[1]))
            case _:
                categories.append(str(value))
    return CharacterSet(tuple(ranges), tuple(categories), is_negated=is_negated, ignores_case=ignores_case)


def _assertion(name: str, flags: int) -> str:
    if flags & re.MULTILINE and name in ("AT_BEGINNING", "AT_END"):
        return f"{name}_LINE"
    return name


def _in_category(character: str, name: str) -> bool:
    if name.startswith("CATEGORY_NOT_"):
        return character not in _CATEGORIES[f"CATEGORY_{name.removeprefix('CATEGORY_NOT_')}"]
    return character in _CATEGORIES[name]


def _has_no_choice(items: list[Any]) -> bool:
    """Whether the time of `re` for a text is bounded by the text's length times the expression's.

    It is if each part consumes at most one character; the last part may also be a choice of such sequences.
    """
    for number, (operation, argument) in enumerate(items):
        name = str(operation)
        is_last = number == len(items) - 1
        if name in ("LITERAL", "NOT_LITERAL", "ANY", "IN", "AT"):
            continue
        if not is_last:
            return False
        if name == "BRANCH":
            return all(_has_no_choice(list(way)) for way in argument[1])
        if name == "SUBPATTERN":
            return _has_no_choice(list(argument[-1]))
        return False
    return True


def _numbers(places: int) -> list[int]:
    numbers = []
    while places:
        lowest = places & -places
        numbers.append(lowest.bit_length() - 1)
        places ^= lowest
    return numbers
