"""Functions with known minima that searches are compared on: smooth ones, wavy ones, and mixes of kinds of ranges.

Where: `tuning_quality` has searches minimize them.
Source: Branin, Hartmann, Ackley, Rosenbrock and Rastrigin functions with their usual constants (Surjanovic, Bingham:
Virtual Library of Simulation Experiments).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from clary.control.tuning.parameter_space import Categorical, Continuous, Integer, Scaling, Space


def _linear(name: str, least: float, greatest: float) -> Continuous:
    return Continuous(name=name, least=least, greatest=greatest, scaling=Scaling.LINEAR)


def _branin(p: Mapping[str, str]) -> float:
    x, y = float(p["x"]), float(p["y"])
    inner = y - 5.1 * x * x / (4 * math.pi**2) + 5 * x / math.pi - 6
    return inner**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10


_HARTMANN_A = (
    (10, 3, 17, 3.5, 1.7, 8),
    (0.05, 10, 17, 0.1, 8, 14),
    (3, 3.5, 1.7, 10, 17, 8),
    (17, 8, 0.05, 10, 0.1, 14),
)
_HARTMANN_P = (
    (1312, 1696, 5569, 124, 8283, 5886),
    (2329, 4135, 8307, 3736, 1004, 9991),
    (2348, 1451, 3522, 2883, 3047, 6650),
    (4047, 8828, 8732, 5743, 1091, 381),
)


_HARTMANN3_A = ((3, 10, 30), (0.1, 10, 35), (3, 10, 30), (0.1, 10, 35))
_HARTMANN3_P = ((3689, 1170, 2673), (4699, 4387, 7470), (1091, 8732, 5547), (381, 5743, 8828))
_HARTMANN_WEIGHTS = (1.0, 1.2, 3.0, 3.2)


def _hartmann(p: Mapping[str, str], steepness: Sequence[Sequence[float]], places: Sequence[Sequence[float]]) -> float:
    total = 0.0
    for weight, a, q in zip(_HARTMANN_WEIGHTS, steepness, places, strict=True):
        total += weight * math.exp(-sum(a[j] * (float(p[f"x{j}"]) - q[j] / 10_000) ** 2 for j in range(len(a))))
    return -total


def _hartmann6(p: Mapping[str, str]) -> float:
    return _hartmann(p, _HARTMANN_A, _HARTMANN_P)


def _ackley(p: Mapping[str, str], dimensions: int) -> float:
    x = [float(p[f"x{index}"]) for index in range(dimensions)]
    squares = sum(value * value for value in x) / dimensions
    waves = sum(math.cos(2 * math.pi * value) for value in x) / dimensions
    return -20 * math.exp(-0.2 * math.sqrt(squares)) - math.exp(waves) + 20 + math.e


def _rosenbrock(p: Mapping[str, str]) -> float:
    x, y = float(p["x"]), float(p["y"])
    return (1 - x) ** 2 + 100 * (y - x * x) ** 2


def _mixed(p: Mapping[str, str]) -> float:
    """Branin with a category that shifts it, of which one in five is right."""
    return _branin(p) + 8 * abs(int(p["kind"]) - 3)


def _mixed_ackley(p: Mapping[str, str]) -> float:
    return _ackley(p, 3) + {"a": 0.0, "b": 1.0, "c": 2.0}[p["kind"]] + {"on": 0.0, "off": 0.7}[p["switch"]]


def _mixed_hartmann(p: Mapping[str, str]) -> float:
    """Hartmann's function of three numbers with a category that makes it shallower, of which one in four does not."""
    return _hartmann(p, _HARTMANN3_A, _HARTMANN3_P) * {"north": 1.0, "east": 0.8, "south": 0.6, "west": 0.4}[p["side"]]


def _integer_rastrigin(p: Mapping[str, str]) -> float:
    """Waves over two whole numbers, at which they have their valleys, and over two that are not whole."""
    x = [float(p[name]) for name in ("i0", "i1", "x0", "x1")]
    return 10 * len(x) + sum(value * value - 10 * math.cos(2 * math.pi * value) for value in x)


def _learning(p: Mapping[str, str]) -> float:
    """A bowl in the logarithm of a rate, as learning rates are."""
    return (math.log10(float(p["lr"])) + 2.5) ** 2 + (math.log10(float(p["decay"])) + 4) ** 2 * 0.3


# Name -> its ranges, the function, and its least value.
FUNCTIONS: Mapping[str, tuple[Space, Callable[[Mapping[str, str]], float], float]] = {
    "branin": ((_linear("x", -5, 10), _linear("y", 0, 15)), _branin, 0.397887),
    "hartmann6": (tuple(_linear(f"x{index}", 0, 1) for index in range(6)), _hartmann6, -3.32237),
    "ackley2": (tuple(_linear(f"x{index}", -5, 5) for index in range(2)), lambda p: _ackley(p, 2), 0.0),
    "ackley5": (tuple(_linear(f"x{index}", -5, 5) for index in range(5)), lambda p: _ackley(p, 5), 0.0),
    "rosenbrock": ((_linear("x", -2, 2), _linear("y", -1, 3)), _rosenbrock, 0.0),
    "mixed-branin": (
        (_linear("x", -5, 10), _linear("y", 0, 15), Categorical(name="kind", values=("1", "2", "3", "4", "5"))),
        _mixed,
        0.397887,
    ),
    "mixed-ackley": (
        (
            *(_linear(f"x{index}", -5, 5) for index in range(3)),
            Categorical(name="kind", values=("a", "b", "c")),
            Categorical(name="switch", values=("on", "off")),
        ),
        _mixed_ackley,
        0.0,
    ),
    "mixed-hartmann3": (
        (
            *(_linear(f"x{index}", 0, 1) for index in range(3)),
            Categorical(name="side", values=("west", "south", "east", "north")),
        ),
        _mixed_hartmann,
        -3.86278,
    ),
    "integer-rastrigin": (
        (
            *(Integer(name=f"i{index}", least=-5, greatest=5, scaling=Scaling.LINEAR) for index in range(2)),
            *(_linear(f"x{index}", -5.12, 5.12) for index in range(2)),
        ),
        _integer_rastrigin,
        0.0,
    ),
    "learning": (
        (
            Continuous(name="lr", least=1e-5, greatest=1.0, scaling=Scaling.LOGARITHMIC),
            Continuous(name="decay", least=1e-7, greatest=1e-1, scaling=Scaling.LOGARITHMIC),
        ),
        _learning,
        0.0,
    ),
}
