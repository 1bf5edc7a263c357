r"""Patterns of service models, compiled to expressions that are safe to run on hostile values.

Where: validation compiles the pattern of each string shape here; `metric_requests` checks the patterns of clients'
metrics. AWS writes patterns for Java. Syntax that Python's `re` lacks is translated (`\p{L}`, surrogate pairs); a
pattern that cannot be translated is not enforced, and is recorded in `skipped_patterns`.

[Note: runaway patterns] `re` backtracks and blocks the interpreter meanwhile: `(a+/?){3,}` takes exponential time on
"aaaa...!". A repeated group that contains a repetition is run only if no text can be divided into its rounds in several
ways: each round must begin or end with exactly one character of a set that occurs nowhere else in the round.
    `(-*[a-z])*` passes the test; `([-a-z]*[a-z])*` fails it and is not enforced. Lengths are checked before patterns,
    which bounds the time of all other patterns. Source: Java SE API, class java.util.regex.Pattern.
"""

from __future__ import annotations

import importlib
import re
import sys
import unicodedata
import warnings
from functools import cache
from typing import Any

_POSIX = {
    "Alnum": "a-zA-Z0-9",
    "Alpha": "a-zA-Z",
    "Digit": "0-9",
    "Lower": "a-z",
    "Upper": "A-Z",
    "XDigit": "0-9a-fA-F",
    "ASCII": "\\x00-\\x7f",
    "Space": " \\t\\n\\x0b\\f\\r",
}
_PROPERTY = re.compile(r"\\p(?:\{(?:Is)?([A-Za-z]+)\}|([A-Z]))")
_SURROGATES = re.compile(r"\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_CLASS_THEN_DASH = re.compile(r"(\\[wdsWDS])-(?!\])")
_SMALL_COUNT = 8  # (x{1,4}:){1,7}: both repetitions are bounded, and so is the time
_BYTES = frozenset(range(256))
_BEYOND = 256  # stands for every character above Latin-1
_EVERYTHING = _BYTES | {_BEYOND}
_CATEGORIES = {
    "CATEGORY_DIGIT": frozenset(b"0123456789"),
    "CATEGORY_SPACE": frozenset(b" \t\n\r\f\v"),
    "CATEGORY_WORD": frozenset(b"0123456789_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"),
}

skipped_patterns: dict[str, str] = {}
"""Patterns that are not enforced, with the reason; filled as shapes are compiled."""


@cache
def compile_pattern(pattern: str) -> re.Pattern[str] | None:
    """Return a pattern compiled for `fullmatch`, or None if it cannot or must not be run; see `skipped_patterns`."""
    try:
        translated = _translated(pattern)
        with warnings.catch_warnings():
            # In Java `[[` begins a nested set; Python warns and interprets it differently.
            warnings.simplefilter("error", FutureWarning)
            # Java's \w, \d and \s are ASCII unless a flag says otherwise.
            compiled = re.compile(translated, re.ASCII)
        reason = "it can take exponential time" if can_run_away(translated) else None
    except (re.error, FutureWarning, LookupError, RecursionError, OverflowError) as error:
        skipped_patterns[pattern] = f"Python cannot say it: {error}"
        return None
    if reason is not None:
        skipped_patterns[pattern] = reason
        return None
    return compiled


def _translated(pattern: str) -> str:
    pattern = _SURROGATES.sub(_one_character, pattern)
    pattern = _CLASS_THEN_DASH.sub(r"\1\\-", pattern)
    return "".join(_expand_properties(pattern))


def _one_character(match: re.Match[str]) -> str:
    high, low = int(match[1], 16), int(match[2], 16)
    return f"\\U{0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00):08x}"


def _expand_properties(pattern: str) -> list[str]:
    r"""Replace `\p{L}` by ranges: bare ranges inside a set, a set of its own outside."""
    pieces: list[str] = []
    position, in_set = 0, False
    while position < len(pattern):
        character = pattern[position]
        if character == "\\":
            match = _PROPERTY.match(pattern, position)
            if match is not None:
                ranges = _property_ranges(match[1] or match[2])
                pieces.append(ranges if in_set else f"[{ranges}]")
                position = match.end()
                continue
            pieces.append(pattern[position : position + 2])
            position += 2
            continue
        if character == "[":
            in_set = True
        elif character == "]":
            in_set = False
        pieces.append(character)
        position += 1
    return pieces


def _property_ranges(name: str) -> str:
    if name in _POSIX:
        return _POSIX[name]
    ranges = _category_ranges().get(name)
    if ranges is None:
        raise LookupError(f"no character property {name}")
    return ranges


@cache
def _category_ranges() -> dict[str, str]:
    """Return the ranges of every general category (Lu) and group of categories (L); the first call takes 0.2 s."""
    found: dict[str, list[tuple[int, int]]] = {}
    start, previous = 0, unicodedata.category("\0")
    for code in range(1, sys.maxunicode + 2):
        category = unicodedata.category(chr(code)) if code <= sys.maxunicode else ""
        if category != previous:
            for name in (previous, previous[0]):
                ranges = found.setdefault(name, [])
                if ranges and ranges[-1][1] == start - 1:
                    ranges[-1] = (ranges[-1][0], code - 1)
                else:
                    ranges.append((start, code - 1))
            start, previous = code, category
    return {name: "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges) for name, ranges in found.items()}


def can_run_away(pattern: str, flags: int = re.ASCII) -> bool:
    """Return whether a pattern may take exponential time ([Note: runaway patterns]).

    The pattern is only parsed, not compiled or run. Raises: re.error, OverflowError or RecursionError.
    """
    return _is_ambiguous(_parsed(pattern, flags))


def has_groups(pattern: str, flags: int = re.ASCII) -> bool:
    """Return whether a pattern has a group that captures; parses it as `can_run_away` does."""
    return int(_parsed(pattern, flags).state.groups) > 1  # the whole match counts as one


def _parsed(pattern: str, flags: int) -> Any:
    # The syntax tree that `re` compiles; its parser is not public.
    parser: Any = importlib.import_module("re._parser")
    return parser.parse(pattern, flags)


def _is_ambiguous(items: Any) -> bool:
    """Whether a sequence has a repetition with several divisions of a text into rounds ([Note: runaway patterns])."""
    for operation, argument in items:
        for _, most, body in _repetition(operation, argument):
            if _is_ambiguous(body):
                return True
            if int(most) > 1 and _varies(body, int(most)) and not _is_delimited(list(body)):
                return True
        for body in _bodies(operation, argument):
            if _is_ambiguous(body):
                return True
    return False


def _varies(items: Any, rounds: int) -> bool:
    """Whether a round can match texts of many lengths."""
    for operation, argument in items:
        for least, most, body in _repetition(operation, argument):
            if most != least and not (int(most) <= _SMALL_COUNT and rounds <= _SMALL_COUNT):
                return True
            if _varies(body, rounds):
                return True
        if any(_varies(body, rounds) for body in _bodies(operation, argument)):
            return True
    return False


def _is_delimited(items: list[Any]) -> bool:
    while len(items) == 1 and str(items[0][0]) == "SUBPATTERN":
        items = list(items[0][1][-1])
    for mark, rest in ((items[0], items[1:]), (items[-1], items[:-1])):
        if _is_one_character(mark) and not (_characters([mark]) & _characters(rest)):
            return True
    return False


def _is_one_character(item: Any) -> bool:
    return str(item[0]) in ("LITERAL", "IN", "NOT_LITERAL")


def _repetition(operation: Any, argument: Any) -> list[tuple[Any, Any, Any]]:
    return [argument] if str(operation) in ("MAX_REPEAT", "MIN_REPEAT") else []


def _bodies(operation: Any, argument: Any) -> list[Any]:
    name = str(operation)
    if name == "SUBPATTERN":
        return [argument[-1]]
    if name == "BRANCH":
        return list(argument[1])
    return [argument[1]] if name in ("ASSERT", "ASSERT_NOT") else []


def _characters(items: Any) -> frozenset[int]:
    """Return the characters that a sequence may match; `_BEYOND` stands for all above Latin-1."""
    found: frozenset[int] = frozenset()
    for operation, argument in items:
        name = str(operation)
        if name == "LITERAL":
            found |= {min(argument, _BEYOND)}
        elif name == "IN":
            found |= _set_characters(argument)
        elif name in ("NOT_LITERAL", "ANY"):
            found |= _EVERYTHING
        for _, _, body in _repetition(operation, argument):
            found |= _characters(body)
        for body in _bodies(operation, argument):
            found |= _characters(body)
    return found


def _set_characters(argument: Any) -> frozenset[int]:
    found: set[int] = set()
    for operation, value in argument:
        name = str(operation)
        if name == "LITERAL":
            found.add(min(value, _BEYOND))
        elif name == "RANGE":
            first, last = value
            found.update(range(min(first, _BEYOND), min(last, _BEYOND) + 1))
        else:
            # NEGATE and other categories count as every character, so that a doubtful pattern is not enforced.
            category = _CATEGORIES.get(str(value))
            if category is None:
                return _EVERYTHING
            found |= category
    return frozenset(found)
