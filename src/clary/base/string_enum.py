"""Enums whose members are their texts, in every Python that reads this floor.

Where: contract and train are read by programs of jobs too, whose Python may be 3.10; `enum.StrEnum` came with 3.11.
"""

from __future__ import annotations

import sys

__all__ = ["StrEnum"]

if sys.version_info >= (3, 11):
    from enum import StrEnum
else:
    from enum import Enum

    class StrEnum(str, Enum):
        """`enum.StrEnum` as far as it is used here: members are texts, compare, print and format as such."""

        # Without it 3.10 prints NAME.MEMBER, and formats as what prints.
        __str__ = str.__str__
