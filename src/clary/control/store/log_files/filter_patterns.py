"""CloudWatch filter patterns over plain text: select messages for FilterLogEvents.

    ERROR timeout         both words occur
    "disk full"           the phrase occurs; quotes are needed for anything but letters, digits and _
    ERROR -retry          the first word occurs and the second does not
    ?ERROR ?WARN          one of the words occurs; ignored in a pattern that has other terms

Case counts; a term matches anywhere in the message. Patterns over JSON `{ }`, space-delimited fields `[ ]` and regular
expressions `% %` are refused, and the error names the kind of pattern.
Source: Amazon CloudWatch Logs user guide, "Filter pattern syntax", unstructured log events.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from clary.control.store.errors import BadLogQuery

MAX_PATTERN_LENGTH = 1024  # FilterLogEvents, filterPattern

_TERM = re.compile(r'\s*(?P<sign>[-?]?)(?:"(?P<phrase>(?:[^"\\]|\\.)*)"|(?P<word>[^\s"]+))(?=\s|$)', re.DOTALL)
_PLAIN_WORD = re.compile(r"\w+")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_UNSUPPORTED = {"{": "JSON patterns", "[": "space-delimited patterns", "%": "regular expressions"}


def compile_pattern(pattern: str | None) -> Callable[[str], bool]:
    """Return a function that decides whether a message matches; an empty pattern matches all messages.

    Raises: BadLogQuery for an invalid or unsupported pattern.
    """
    text = (pattern or "").strip()
    if not text:
        return _matches_all
    if len(text) > MAX_PATTERN_LENGTH:
        raise BadLogQuery(f"filter pattern: at most {MAX_PATTERN_LENGTH} characters, got {len(text)}: shorten it")
    if text[0] in _UNSUPPORTED:
        raise BadLogQuery(
            f"filter pattern {text[:80]!r}: {_UNSUPPORTED[text[0]]} are not supported: use terms, quoted phrases, "
            f"-term to exclude and ?term for alternatives"
        )
    required, excluded, optional = _parse(text)

    def matches(message: str) -> bool:
        if required or excluded:
            return all(term in message for term in required) and not any(term in message for term in excluded)
        return any(term in message for term in optional)

    return matches


def _matches_all(_message: str) -> bool:
    return True


def _parse(text: str) -> tuple[list[str], list[str], list[str]]:
    """Return the required terms, the excluded terms, and the terms of which at least one must occur."""
    terms: dict[str, list[str]] = {"": [], "-": [], "?": []}
    position = 0
    while position < len(text):
        found = _TERM.match(text, position)
        if found is None:
            raise BadLogQuery(
                f"Invalid filter pattern: {text[position:].strip()[:80]!r} is not a term: close every quote and put "
                f"spaces between terms"
            )
        word = found["word"]
        if word is not None and not _PLAIN_WORD.fullmatch(word):
            raise BadLogQuery(f"Invalid character(s) in term '{word[:80]}': put it in double quotes")
        term = word if word is not None else _ESCAPED.sub(r"\1", found["phrase"])
        terms[found["sign"]].append(term)
        position = found.end()
    return terms[""], terms["-"], terms["?"]
