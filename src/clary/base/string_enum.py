"""Enums whose members are strings, for every Python that imports this package.

Where: `clary.contract` and `clary.train` also run in programs of jobs, whose Python may be 3.10; `enum.StrEnum` came
with 3.11.
"""

from __future__ import annotations

import sys

__all__ = ["StrEnum"]

if sys.version_info >= (3, 11):
    from enum import StrEnum
else:
    from enum import Enum

    class StrEnum(str, Enum):
        """The part of `enum.StrEnum` that Clary uses: members are strings, and compare, print and format as strings."""

        # Without this assignment, Python 3.10 prints and formats a member as NAME.MEMBER.
        __str__ = str.__str__
