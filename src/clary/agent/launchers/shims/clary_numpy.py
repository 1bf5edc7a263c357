"""Answers for names that NumPy has no more, which scripts for AWS's older images use: `numpy.int`, `numpy.Inf`.

Where: `clary_rank` calls `install` before it runs a program. NumPy is asked first, so names that it has mean what they
mean there. A name of `_MEANINGS` that it refuses gets what it stood for, and one process of a program says so.
Other names stay refused, in NumPy's own words: they had no successor of the same meaning.
It runs in the user's environment: Python 3.8 or later, the standard library only, nothing of clary.
Source: release notes of NumPy 1.20 (aliases of Python's types), 1.24 (their end), 2.0 and 2.4 (the other names).
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from typing import Any

_TOLD = "CLARY_TOLD_NUMPY"  # one process of a program prints the message
# What a name stood for: a type of Python, a number, or the name that NumPy has for it today.
_MEANINGS: dict[str, Any] = {
    "bool": bool,
    "int": int,
    "float": float,
    "complex": complex,
    "object": object,
    "str": str,
    "Inf": float("inf"),
    "Infinity": float("inf"),
    "infty": float("inf"),
    "PINF": float("inf"),
    "NINF": float("-inf"),
    "NaN": float("nan"),
}
_SUCCESSORS = {
    "float_": "float64",
    "complex_": "complex128",
    "string_": "bytes_",
    "unicode_": "str_",
    "product": "prod",
    "cumproduct": "cumprod",
    "alltrue": "all",
    "sometrue": "any",
    "round_": "round",
    "row_stack": "vstack",
    "trapz": "trapezoid",
    "mat": "asmatrix",
}


def install() -> None:
    """Have NumPy answer when it is imported, or at once where it is there already. Harmless when repeated."""
    importlib.import_module("clary_imports").when_imported("numpy", register)  # beside this file


def register(numpy: types.ModuleType) -> None:
    """Have a module NumPy answer for names of older versions. Harmless when repeated.

    Args:
        numpy: the module. One that has no function for missing names, as before 1.20, stays as it is.
    """
    ask = vars(numpy).get("__getattr__")
    if ask is None or getattr(ask, "is_clary", False):
        return

    def answer(name: str) -> Any:
        try:
            return ask(name)
        except AttributeError:
            successor = _SUCCESSORS.get(name)
            if name in _MEANINGS:
                meaning, words = _MEANINGS[name], repr(_MEANINGS[name])
            elif successor is not None and hasattr(numpy, successor):
                meaning, words = getattr(numpy, successor), f"numpy.{successor}"
            else:
                raise
        _tell(name, words, str(getattr(numpy, "__version__", "")))
        return meaning

    answer.is_clary = True  # type: ignore[attr-defined]
    vars(numpy)["__getattr__"] = answer


def _tell(name: str, words: str, version: str) -> None:
    """Print once a program that it gets a name that its NumPy does not have."""
    if os.environ.get(_TOLD) or os.environ.get("RANK", "0") != "0":
        return
    os.environ[_TOLD] = "1"
    print(
        f"clary: NumPy {version} has no numpy.{name}; this program gets {words} for it, and what other names of older "
        f"versions stood for. In an image with this NumPy its use fails",
        file=sys.stderr,
        flush=True,
    )
