"""Replaces `torch._six`, which torch 2.0 removed: aliases of Python's own types that scripts for torch 1 import.

Where: `clary_autoload` finds this module when a program imports `torch._six` and torch has no such module.
"""

import collections.abc
import math
import os
import sys

_TOLD = "CLARY_TOLD_TORCH_SIX"  # one process of a program prints the message

inf, nan = math.inf, math.nan
string_classes = (str, bytes)
int_classes = int
container_abcs = collections.abc

if not os.environ.get(_TOLD) and os.environ.get("RANK", "0") == "0":
    os.environ[_TOLD] = "1"
    print(
        "clary: torch 2.0 removed torch._six; this program gets inf, nan, string_classes, int_classes and "
        "container_abcs as torch 1 had them. In an image with torch 2 its import fails",
        file=sys.stderr,
        flush=True,
    )
