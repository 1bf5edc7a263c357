"""Outcomes of functions of the programs in this folder, and reasons why some cannot run on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from torch_ranks import ROOT, outcomes

ABSENT = "gpu_world.Absent: "
_LIMIT_S = 100.0


def failure_of(program: Path, function: str, size: int, *, only: str = "") -> str | None:
    """Run a program, or one function of it; return the failures of its ranks as text, None if all passed.

    If there are fewer GPUs than ranks, ranks share a GPU: LOCAL_RANK is 0 for each rank.
    """
    paths = (
        ROOT / "src",
        ROOT / "src/clary/compat",
        ROOT / "tests/gpu",
        ROOT / "tests/integration",
        ROOT / "tests/integration/smp",
    )
    variables = {
        "RANK": "{rank}",
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "CLARY_PARALLEL_TIMEOUT_S": "20",
        "CLARY_TEST_ONLY": only,
        "PYTHONPATH": ":".join([*map(str, paths), os.environ.get("PYTHONPATH", "")]).rstrip(":"),
    }
    if os.environ.get("CLARY_CUDA_ON_CPU"):
        variables["CLARY_CUDA_ON_CPU"] = "1"
    told = outcomes(program, size, _LIMIT_S, **variables)[function]
    failures = [(rank, failure) for rank, failure in enumerate(told) if failure is not None]
    # A rank that cannot run makes its peers fail too, so its reason comes first.
    failures.sort(key=lambda pair: ABSENT not in pair[1])
    return "\n".join(f"rank {rank}: {failure}" for rank, failure in failures) or None


def reason_of_absence(failure: str) -> str | None:
    """Return the reason why a function cannot run on this machine, None if it ran and failed."""
    lines = [line for line in failure.splitlines() if line.startswith(ABSENT)]
    return lines[0].removeprefix(ABSENT) if lines else None
