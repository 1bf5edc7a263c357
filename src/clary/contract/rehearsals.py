"""How everything knows a rehearsal, and where its programs write down what they draw and do.

Where: `clary rehearse` sets the variable in the Environment of the requests it makes; the service strikes no job
without it; in the program `compat.clary_rehearsal` looks for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REHEARSAL_VARIABLE = "CLARY_REHEARSAL"
RECORDS_PARTS = (".clary", "rehearsal")  # folder below /opt/ml
RECORD_SUFFIX = ".jsonl"
RECORD_PREFIX = "rehearsal-"  # of the files kept beside a host's logs


def is_rehearsal(request: Mapping[str, Any]) -> bool:
    """Whether a CreateTrainingJob request is that of a twin or a rehearsal."""
    return bool((request.get("Environment") or {}).get(REHEARSAL_VARIABLE))
