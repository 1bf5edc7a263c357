"""The notice by which this host's agent announces the stop of the job; see docs/signals.md."""

from __future__ import annotations

import os
from collections.abc import Mapping

NOTICE_VARIABLE = "CLARY_STOP_NOTICE"  # variable with the path of a file that exists once a stop was ordered


def is_stop_ordered(environ: Mapping[str, str]) -> bool:
    """Whether the notice exists; False outside jobs, which lack the variable."""
    path = environ.get(NOTICE_VARIABLE)
    return bool(path) and os.path.exists(str(path))
