"""Whether this host's agent has said that the job is to be stopped; see docs/signals.md."""

from __future__ import annotations

import os
from collections.abc import Mapping

NOTICE_VARIABLE = "CLARY_STOP_NOTICE"  # path of a file that is there once a stop was ordered


def is_stop_ordered(environ: Mapping[str, str]) -> bool:
    """Whether the notice is there; False outside jobs, where nothing names one."""
    path = environ.get(NOTICE_VARIABLE)
    return bool(path) and os.path.exists(str(path))
