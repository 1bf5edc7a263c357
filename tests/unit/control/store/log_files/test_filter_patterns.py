"""CloudWatch filter patterns over plain text."""

import pytest

from clary.control.store.errors import BadLogQuery
from clary.control.store.log_files.filter_patterns import compile_pattern

MESSAGES = {
    "error": "[ERROR 419] disk full on algo-1",
    "warn": "WARN retry: disk slow",
    "info": 'INFO says "hello" loss=0.5',
    "code": "ERRORCODE BAD",
}


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (None, "error warn info code"),
        ("", "error warn info code"),
        ("   ", "error warn info code"),
        ("ERROR", "error code"),
        ("error", ""),
        ("disk ERROR", "error"),
        ('"disk full"', "error"),
        ('"[ERROR"', "error"),
        ("disk -ERROR", "warn"),
        ('-"disk slow" -INFO', "error code"),
        ("?WARN ?INFO", "warn info"),
        ('?"loss=" ?BAD', "info code"),
        ("?WARN ERROR", "error code"),  # alternatives do not count beside a required term
        ("?WARN -disk", "info code"),
        (r'"\"hello\""', "info"),
        ("419", "error"),
        ("\tWARN\n", "warn"),
    ],
)
def test_a_pattern_matches_the_expected_messages(pattern: str | None, expected: str) -> None:
    matches = compile_pattern(pattern)
    assert [name for name, message in MESSAGES.items() if matches(message)] == expected.split()


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("{ $.level = 1 }", "JSON patterns are not supported"),
        ("[ip, user]", "space-delimited patterns are not supported"),
        ("%ERR.*%", "regular expressions are not supported"),
        ("loss=0.5", r"Invalid character\(s\) in term 'loss=0.5': put it in double quotes"),
        ("ok %ERR.*%", r"Invalid character\(s\) in term"),
        ('"never closed', "is not a term"),
        ('a "b"c', "is not a term"),
        ("a -", r"Invalid character\(s\) in term '-'|is not a term"),
        ("x" * 1025, "at most 1024 characters"),
    ],
)
def test_an_unsupported_pattern_is_refused_by_name(pattern: str, words: str) -> None:
    with pytest.raises(BadLogQuery, match=words):
        compile_pattern(pattern)


def test_hostile_patterns_are_parsed_quickly() -> None:
    for pattern in ('"' + "\\" * 1000, '""' * 500, "- " * 500, "? - " * 250):
        with pytest.raises(BadLogQuery):
            compile_pattern(pattern)
