"""A query text as words, numbers, strings, regular expressions and signs, each with its place.

Where: `reading` requests all tokens before it parses. The text is read once, character by character.
Source: CloudWatch Logs user guide, "CloudWatch Logs Insights language query syntax".
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from enum import Enum, auto

from clary.control.insights.errors import MalformedQuery

MAX_QUERY_LENGTH = 10_000  # StartQuery, queryString
_BLANKS = " \t\r\n"
_DIGITS = frozenset(string.digits)
_WORD_STARTS = frozenset(string.ascii_letters + "_@")
_WORD_CHARACTERS = _WORD_STARTS | _DIGITS | {"."}
_SIGNS = ("=~", "!=", "<=", ">=", "=", "<", ">", "(", ")", "[", "]", ",", "|", "*", "-")
_ESCAPABLE = "\\'\"`"


class Kind(Enum):
    """The kind of a token."""

    WORD = auto()  # a command, an operator, a function or a field
    NAME = auto()  # a field in backticks
    NUMBER = auto()
    STRING = auto()
    REGEX = auto()
    SIGN = auto()
    END = auto()


@dataclass(frozen=True)
class Token:
    """One piece of a query."""

    kind: Kind
    text: str  # without quotes and escapes
    start: int
    end: int

    def is_word(self, *words: str) -> bool:
        """Whether the token is one of these words, in upper or lower case."""
        return self.kind is Kind.WORD and self.text.lower() in words

    def is_sign(self, *signs: str) -> bool:
        """Whether the token is one of these signs."""
        return self.kind is Kind.SIGN and self.text in signs

    def __str__(self) -> str:
        return "the end of the query" if self.kind is Kind.END else repr(self.text[:60])


def tokens_of(text: str) -> list[Token]:
    """Split a query into tokens; the last token marks the end.

    Raises: MalformedQuery for a query that is too long, a character that begins no token, or a missing closing quote.
    """
    if len(text) > MAX_QUERY_LENGTH:
        raise MalformedQuery(
            f"a query has at most {MAX_QUERY_LENGTH} characters, got {len(text)}: shorten it",
            start=MAX_QUERY_LENGTH,
            end=len(text),
        )
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        character = text[position]
        if character in _BLANKS:
            position += 1
        elif character == "#":
            position = _line_end(text, position)
        else:
            tokens.append(_token(text, position))
            position = tokens[-1].end
    tokens.append(Token(Kind.END, "", len(text), len(text)))
    return tokens


def _token(text: str, start: int) -> Token:
    character = text[start]
    if character in _WORD_STARTS:
        return _run(text, start, _WORD_CHARACTERS, Kind.WORD)
    if character in _DIGITS:
        return _number(text, start)
    if character in "\"'":
        return _quoted(text, start, Kind.STRING, "string")
    if character == "`":
        return _quoted(text, start, Kind.NAME, "name of a field")
    if character == "/":
        return _quoted(text, start, Kind.REGEX, "regular expression")
    for sign in _SIGNS:
        if text.startswith(sign, start):
            return Token(Kind.SIGN, sign, start, start + len(sign))
    raise MalformedQuery(
        f"unexpected character {character!r}: names of fields with characters other than letters, digits, '_', '@' and "
        f"'.' stand in backticks, texts in quotes",
        start=start,
        end=start + 1,
    )


def _run(text: str, start: int, characters: frozenset[str], kind: Kind) -> Token:
    end = start
    while end < len(text) and text[end] in characters:
        end += 1
    return Token(kind, text[start:end], start, end)


def _number(text: str, start: int) -> Token:
    whole = _run(text, start, _DIGITS, Kind.NUMBER)
    if text[whole.end : whole.end + 1] == "." and text[whole.end + 1 : whole.end + 2] in _DIGITS:
        fraction = _run(text, whole.end + 1, _DIGITS, Kind.NUMBER)
        return Token(Kind.NUMBER, text[start : fraction.end], start, fraction.end)
    return whole


def _quoted(text: str, start: int, kind: Kind, what: str) -> Token:
    """Return the token between a quote and the next unescaped quote.

    Args:
        text: the whole query.
        start: index of the opening quote.
        kind: kind of the token; decides which escapes are resolved.
        what: names the token in errors.
    Raises: MalformedQuery if the closing quote is missing.
    """
    quote = text[start]
    characters: list[str] = []
    position = start + 1
    while position < len(text):
        character = text[position]
        if character == quote:
            return Token(kind, "".join(characters), start, position + 1)
        if character == "\\" and position + 1 < len(text):
            characters.append(_escaped(text[position + 1], kind))
            position += 2
        else:
            characters.append(character)
            position += 1
    raise MalformedQuery(f"a {what} begins here and does not end: close it with {quote}", start=start, end=len(text))


def _escaped(character: str, kind: Kind) -> str:
    """Return the meaning of a backslash with a character; regular expressions keep both, except before a slash."""
    if kind is Kind.REGEX:
        return character if character == "/" else f"\\{character}"
    return character if character in _ESCAPABLE else f"\\{character}"


def _line_end(text: str, start: int) -> int:
    found = text.find("\n", start)
    return len(text) if found < 0 else found
