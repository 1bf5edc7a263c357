"""Notice of this host's agent that the job is to be stopped; see docs/signals.md."""

from __future__ import annotations

import os
from collections.abc import Mapping

NOTICE_VARIABLE = "CLARY_STOP_NOTICE"  # path of a file that exists once a stop was ordered


def is_stop_ordered(environ: Mapping[str, str]) -> bool:
    """Whether the notice exists; False outside jobs, where the variable is not set."""
    path = environ.get(NOTICE_VARIABLE)
    return bool(path) and os.path.exists(str(path))
