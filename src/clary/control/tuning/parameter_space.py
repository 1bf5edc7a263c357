"""Ranges of hyperparameters: which values there are, and how a value is written. Pure.

Where: `tuning_request` reads ranges of a request into these, `search` asks for a value of each, `validation` checks
them. Values travel as the text that a training job gets.
Source: ParameterRanges, IntegerParameterRange, ContinuousParameterRange, CategoricalParameterRange and
HyperParameterScalingType (AWS API reference).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

AUTO_IS_LOGARITHMIC_FROM = 2 - 1e-9  # orders of magnitude; less a bit, for 1e-7 is not quite a hundred times 1e-9


class Scaling(StrEnum):
    """HyperParameterScalingType, less Auto, which `scaling_of` decides."""

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
        """Return a value as hyperparameters are written; read back it is the same float."""
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
        """Return a value as hyperparameters are written."""
        return str(int(value))

    def value(self, text: str) -> int | None:
        """Return the value of a text; None if it is not of this range."""
        number = _whole_number(text)
        return number if number is not None and self.least <= number <= self.greatest else None


@dataclass(frozen=True, kw_only=True)
class Categorical:
    """One of a list of texts."""

    name: str
    values: tuple[str, ...]

    def text(self, value: str) -> str:
        """Return a value, which is its own text."""
        return value

    def value(self, text: str) -> str | None:
        """Return the text if it is of the list, else None."""
        return text if text in self.values else None


Range = Continuous | Integer | Categorical
Space = tuple[Range, ...]


def scaling_of(word: str, *, least: float, greatest: float) -> Scaling:
    """Return the scaling for a word of a request; Auto is logarithmic for ranges of two orders of magnitude.

    Args:
        word: Linear, Logarithmic, ReverseLogarithmic, Auto, or empty for Auto.
        least: of the range.
        greatest: of the range.
    """
    if word in ("", "Auto"):
        is_wide = greatest > least > 0 and math.log10(greatest) - math.log10(least) >= AUTO_IS_LOGARITHMIC_FROM
        return Scaling.LOGARITHMIC if is_wide else Scaling.LINEAR
    return Scaling(word)


def num_values(space: Space) -> int | None:
    """Return how many different points a space has; None for one with a continuous range."""
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
        return int(text)  # not by way of a float, which rounds great ones
    except ValueError:
        number = _number(text)
    return None if number is None or number != int(number) else int(number)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
