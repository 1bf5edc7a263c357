"""Lines of the daemon's log, which is its standard error.

Where: `daemon` and `lease_table` write them.
"""

from __future__ import annotations

import contextlib
import sys
import time


def say(words: str) -> None:
    """Write a line with the time; a log that cannot be written, on a full disk, ends nothing."""
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    with contextlib.suppress(OSError):
        print(f"{moment} {words}", file=sys.stderr, flush=True)
