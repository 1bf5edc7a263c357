"""Ranges of hyperparameters: their values, and the text of each value. Pure.

Where: `tuning_request` makes them from a request, `search` chooses a value of each, `validation` checks them. A value
is passed as the text that a training job gets.
Source: ParameterRanges, IntegerParameterRange, ContinuousParameterRange, CategoricalParameterRange and
HyperParameterScalingType (AWS API reference).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

AUTO_IS_LOGARITHMIC_FROM = 2 - 1e-9  # orders of magnitude; below 2, since in floats 1e-7 is less than 100 * 1e-9


class Scaling(StrEnum):
    """HyperParameterScalingType without Auto, which `scaling_of` resolves."""

    LINEAR = "Linear"
    LOGARITHMIC = "Logarithmic"
    REVERSE_LOGARITHMIC = "ReverseLogarithmic"


@dataclass(frozen=True, kw_only=True)
class Continuous:
    """Any number of a closed interval."""

    name: str
    least: float
    greatest: float
    scaling: Scaling

    def text(self, value: float) -> str:
        """Return the text of a value; reading it gives the same float."""
        return repr(float(value))

    def value(self, text: str) -> float | None:
        """Return the value of a text; None if it is not of this range."""
        number = _number(text)
        return number if number is not None and self.least <= number <= self.greatest else None


@dataclass(frozen=True, kw_only=True)
class Integer:
    """Any whole number of a closed interval."""

    name: str
    least: int
    greatest: int
    scaling: Scaling

    def text(self, value: float) -> str:
        """Return the text of a value."""
        return str(int(value))

    def value(self, text: str) -> int | None:
        """Return the value of a text; None if it is not of this range."""
        number = _whole_number(text)
        return number if number is not None and self.least <= number <= self.greatest else None


@dataclass(frozen=True, kw_only=True)
class Categorical:
    """A list of texts; the value is one of them."""

    name: str
    values: tuple[str, ...]

    def text(self, value: str) -> str:
        """Return a value, which is its own text."""
        return value

    def value(self, text: str) -> str | None:
        """Return the text if it is in the list, else None."""
        return text if text in self.values else None


Range = Continuous | Integer | Categorical
Space = tuple[Range, ...]


def scaling_of(word: str, *, least: float, greatest: float) -> Scaling:
    """Return the scaling that a request names.

    Auto is logarithmic if `least` is above 0 and `greatest` is at least two orders of magnitude greater, else linear.

    Args:
        word: Linear, Logarithmic, ReverseLogarithmic, Auto, or empty for Auto.
        least: least value of the range.
        greatest: greatest value of the range.
    """
    if word in ("", "Auto"):
        is_wide = greatest > least > 0 and math.log10(greatest) - math.log10(least) >= AUTO_IS_LOGARITHMIC_FROM
        return Scaling.LOGARITHMIC if is_wide else Scaling.LINEAR
    return Scaling(word)


def num_values(space: Space) -> int | None:
    """Return the number of different points of a space; None if it has a continuous range of more than one value."""
    total = 1
    for one in space:
        if isinstance(one, Continuous):
            if one.least < one.greatest:
                return None
        elif isinstance(one, Integer):
            total *= one.greatest - one.least + 1
        else:
            total *= len(one.values)
    return total


def _whole_number(text: str) -> int | None:
    try:
        return int(text)  # no float: it would round large numbers
    except ValueError:
        number = _number(text)
    return None if number is None or number != int(number) else int(number)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
