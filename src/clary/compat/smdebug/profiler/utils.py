"""The function of smdebug's profiler that training scripts import."""

from argparse import ArgumentTypeError
from typing import Any

from . import refuse

_TRUE = ("yes", "true", "t", "y", "1")
_FALSE = ("no", "false", "f", "n", "0")


def str2bool(v: str | bool) -> bool:
    """Return a truth value written as a word, in capital or small letters; for `type=` of argparse's arguments.

    Raises: argparse.ArgumentTypeError for another word.
    """
    if isinstance(v, bool):
        return v
    word = v.lower()
    if word not in (*_TRUE, *_FALSE):
        raise ArgumentTypeError(f"{v!r} is no truth value; expected yes or no, true or false, t or f, y or n, 1 or 0")
    return word in _TRUE


def __getattr__(name: str) -> Any:
    refuse(__name__, name)
