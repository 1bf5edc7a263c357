"""Errors of log queries."""

from __future__ import annotations

from clary.base.errors import ClaryError, Fault


class MalformedQuery(ClaryError):
    """A query with a syntax error, or with a feature that is not offered.

    Args:
        message: names the expected syntax.
        start: index of the first wrong character.
        end: index after the last wrong character.
    """

    default_fault = Fault.USER

    def __init__(self, message: str, *, start: int, end: int) -> None:
        super().__init__(message)
        self.start = start
        self.end = end


class QueryTooLarge(ClaryError):
    """A query whose result, groups or automaton grew past a bound while it ran."""

    default_fault = Fault.USER
