"""Findings: the errors that a target raises when the product breaks a promise."""

from __future__ import annotations

from typing import NoReturn


class FindingError(AssertionError):
    """The product did something that it must never do; the message names it, with the input that led to it."""


def found(what: str, **evidence: object) -> NoReturn:
    """Stop with a finding."""
    shown = "".join(f"\n  {name}: {value!r:.2000}" for name, value in evidence.items())
    raise FindingError(f"{what}{shown}")


def require(holds: bool, what: str, **evidence: object) -> None:
    """Stop with a finding unless `holds`."""
    if not holds:
        found(what, **evidence)
