"""Check of a host's GPUs: the driver answers, reports no uncorrected memory errors, and each GPU multiplies correctly.

Where: `host_checks` calls it for hosts with GPUs in their plan. `gpu_finding` is pure. The commands have not been run
on a GPU so far.
Source: `nvidia-smi --help-query-gpu`; "Driver Persistence" of NVIDIA's documentation.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from clary.base.limited_runs import RunTooLong, run_limited
from clary.contract.health import Check, FindingState, HealthFinding
from clary.contract.launch_plan import HostPlan, LaunchPlan

_QUERY = "index,name,ecc.errors.uncorrected.volatile.total,temperature.gpu"
_QUERY_S = 30.0  # a driver without an open client initializes each GPU, for up to 3 s per GPU
_MULTIPLY_S = 25.0
_WARN_CELSIUS = 90
_LOST = ("GPU is lost", "Unknown Error")  # texts that drivers print for a GPU that does not answer
_MULTIPLY = """
import sys, torch
for index in map(int, sys.argv[1:]):
    product = torch.ones(512, 512, device=f"cuda:{index}") @ torch.ones(512, 512, device=f"cuda:{index}")
    print(index, "right" if bool((product == 512).all()) else "wrong")
"""

OK, WARN, BAD = FindingState.OK, FindingState.WARN, FindingState.BAD


def check_gpus(plan: LaunchPlan, host: HostPlan, *, computes: bool) -> HealthFinding:
    """Query the driver and, with `computes`, multiply on each GPU of the host.

    Args:
        plan: of the attempt; the Python of its environment runs the multiplication.
        host: the host, with at least one GPU.
        computes: whether to multiply; it takes seconds and GPU memory, so only while no program runs on the host.
    """
    indices = host.resources.gpu_indices
    listing = _run(["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"], _QUERY_S)
    products = None
    if computes and listing is not None:
        # The indices are the driver's: CUDA must use the driver's order and see all GPUs.
        shown = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        counted = {**shown, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        products = _run([plan.environment.python, "-c", _MULTIPLY, *map(str, indices)], _MULTIPLY_S, counted)
    return gpu_finding(host.name, indices, listing=listing, products=products, has_computed=computes)


def gpu_finding(
    host: str, indices: Sequence[int], *, listing: str | None, products: str | None, has_computed: bool
) -> HealthFinding:
    """Judge the answers of the driver and the GPUs. Pure.

    Args:
        host: name of the host.
        indices: of the host's GPUs.
        listing: output of nvidia-smi; None if it failed.
        products: output of the multiplication; None if it failed.
        has_computed: whether a multiplication was requested.
    """

    def finding(state: FindingState, words: str, cause: str = "") -> HealthFinding:
        return HealthFinding(check=Check.GPU, state=state, host=host, words=words, cause=cause)

    if listing is None:
        return finding(BAD, "nvidia-smi does not answer", "the driver is not loaded, or hangs")
    rows = {int(row[0]): row for row in _rows(listing) if row[0].isdigit()}
    missing = [index for index in indices if index not in rows]
    if missing:
        words = f"GPU {', '.join(map(str, missing))} is missing, the driver lists {', '.join(map(str, rows)) or 'none'}"
        return finding(BAD, words, "the GPU has fallen off the bus")
    lost = [index for index in indices if any(word in rows[index][2] for word in _LOST)]
    if lost:
        words = ", ".join(f"GPU {index}: {rows[index][2]}" for index in lost)
        return finding(BAD, f"the driver cannot read {words}", "the GPU has fallen off the bus, or its driver hangs")
    # A text instead of a number: the GPU lacks this value, or the user may not read it.
    failing = [index for index in indices if rows[index][2].isdigit() and int(rows[index][2])]
    if failing:
        counts = ", ".join(f"GPU {index}: {rows[index][2]}" for index in failing)
        return finding(BAD, f"uncorrected memory errors: {counts}, expected 0", "the memory of the GPU is failing")
    if has_computed:
        said = dict(line.split() for line in (products or "").splitlines() if len(line.split()) == 2)
        wrong = [index for index in indices if said.get(str(index)) == "wrong"]
        if wrong:
            return finding(BAD, f"GPU {', '.join(map(str, wrong))} multiplies wrongly", "the GPU is failing")
        if products is None:
            return finding(WARN, "the multiplication was not made", "no torch with CUDA in the job's environment")
    hot = [index for index in indices if rows[index][3].isdigit() and int(rows[index][3]) >= _WARN_CELSIUS]
    if hot:
        heat = ", ".join(f"GPU {index}: {rows[index][3]} C" for index in hot)
        return finding(WARN, f"{heat}, expected below {_WARN_CELSIUS} C", "the GPU is badly cooled")
    return finding(OK, f"{len(indices)} x {rows[indices[0]][1]}")


def _rows(listing: str) -> list[list[str]]:
    rows = [[cell.strip() for cell in line.split(",")] for line in listing.splitlines()]
    return [row for row in rows if len(row) == _QUERY.count(",") + 1]


def _run(command: list[str], timeout_s: float, variables: Mapping[str, str] | None = None) -> str | None:
    try:
        done = run_limited(command, limit_s=timeout_s, variables=variables)
    except (OSError, RunTooLong):
        return None
    return done.output if done.code == 0 else None
