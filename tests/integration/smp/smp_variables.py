"""Environment variables of programs that import smdistributed from this checkout."""

from __future__ import annotations

from pathlib import Path

from torch_ranks import ROOT

VARIABLES = {
    "CLARY_TEST_BACKEND": "gloo",
    "CLARY_PARALLEL_TIMEOUT_S": "20",
    "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'src/clary/compat'}:{Path(__file__).parent}",
}
