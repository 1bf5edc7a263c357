"""Parses times as users write them: moments (how long ago, or ISO 8601), and numbers of seconds or minutes."""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime

MS_OF_UNIT = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_AGO = re.compile(r"((?:[0-9]{1,9}[smhdw])+)(?:\s+ago)?")
_PART = re.compile(r"([0-9]+)([smhdw])")


def moment_ms(text: str, *, now: datetime | None = None) -> int:
    """Return a moment in milliseconds since 1970; used as an argparse type.

    Args:
        text: `10m`, `1h30m`, `1d ago`, or an ISO 8601 time; a time without a zone is in this machine's zone, as in
            `describe`.
        now: time from which "ago" counts; None stands for the time of the call.

    Raises: argparse.ArgumentTypeError naming the accepted forms.
    """
    ago = _AGO.fullmatch(text.strip())
    if ago is not None:
        now_ms = int((now or datetime.now(UTC)).timestamp() * 1000)
        return max(0, now_ms - sum(int(number) * MS_OF_UNIT[unit] for number, unit in _PART.findall(ago[1])))
    try:
        return max(0, int(datetime.fromisoformat(text.strip()).timestamp() * 1000))
    except (ValueError, OverflowError, OSError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no moment: expected how long ago (30s, 10m, 2h, 1d, 1w) or an ISO time (2026-01-31T12:00:00Z)"
        ) from None


def seconds(text: str) -> float:
    """Return a time in seconds, from `600` or `600s`; used as an argparse type.

    Raises: argparse.ArgumentTypeError for another text, a negative number, infinity or NaN.
    """
    return _number(text.removesuffix("s"), text, "seconds")


def minutes(text: str) -> float:
    """Return a time in minutes, from `10` or `10m`; otherwise as `seconds`."""
    return _number(text.removesuffix("m"), text, "minutes")


def _number(number: str, text: str, unit: str) -> float:
    try:
        found = float(number)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise argparse.ArgumentTypeError(f"expected {unit}, got {text!r}")
    return found
