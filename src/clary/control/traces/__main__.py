"""`python -m clary.control.traces FOLDER`: read the traces of one profile, within a limit on memory."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from clary.control.traces.analysis import analyse

# Five million events, the most that are read of a trace, take some two gigabytes. Programs write the traces: a short
# file may unpack to gigabytes of names.
MAX_MEMORY_BYTES = 8 * 1024 * 1024 * 1024


def limit_memory(most_bytes: int) -> None:
    """Let allocations of this process fail beyond a number of bytes; a lower limit that is set already stays."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    known = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([most_bytes, *known]), hard))


if __name__ == "__main__":
    limit_memory(MAX_MEMORY_BYTES)
    analyse(Path(sys.argv[1]))
