"""Names that NumPy has removed and scripts for AWS's older images still use: `numpy.int`, `numpy.Inf`.

Where: `clary_rank` calls `install` before it runs a program. NumPy is asked first, so an existing name keeps NumPy's
meaning. A removed name gets its old meaning from `_MEANINGS` or `_SUCCESSORS`, and one process of a program prints a
message. Names outside of these tables fail with NumPy's own message.
It runs in the user's environment: Python 3.8 or later, with the standard library only, without clary.
Source: release notes of NumPy 1.20 (aliases of Python's types), 1.24 (their end), 2.0 and 2.4 (the other names).
"""

from __future__ import annotations

import importlib
import os
import sys
import types

TYPE_CHECKING = False  # as in `typing`; see `clary_imports`
if TYPE_CHECKING:
    from typing import Any

_TOLD = "CLARY_TOLD_NUMPY"  # one process of a program prints the message
# Name -> Python type or number that it meant. `_SUCCESSORS` below: name -> NumPy's current name.
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
    """Register the removed names when NumPy is imported, or at once if it already is; a second call does nothing."""
    importlib.import_module("clary_imports").when_imported("numpy", register)  # module in this file's folder


def register(numpy: types.ModuleType) -> None:
    """Add the removed names to the module; a second call does nothing.

    Args:
        numpy: the module. A version without a module-level `__getattr__` is left unchanged.
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
    """Print once per program that it uses a name that its NumPy has removed."""
    if os.environ.get(_TOLD) or os.environ.get("RANK", "0") != "0":
        return
    os.environ[_TOLD] = "1"
    print(
        f"clary: NumPy {version} has no numpy.{name}; this program gets {words} for it, and what other names of older "
        f"versions stood for. In an image with this NumPy its use fails",
        file=sys.stderr,
        flush=True,
    )
