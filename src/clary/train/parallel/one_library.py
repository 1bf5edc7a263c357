"""Check that a program uses only one of two libraries: SMP v1 (`smp.init`) or SMP v2 (`tsm.init`).

Where: both `init` functions call `check` before they wait for other ranks, and `claim` at the end. Each library lays
out ranks by its own keys; if both were used, layers would match neither layout.
"""

from __future__ import annotations

V1, V2 = "smp.init of smdistributed.modelparallel", "tsm.init of torch.sagemaker"
_INSTEAD = {
    V1: "smp.DistributedModel and smp.DistributedOptimizer cut and train models",
    V2: "tsm.transform cuts models, and torch's FSDP trains them",
}
_used: str | None = None


def check(library: str) -> None:
    """Check that the program does not use the other library.

    Raises: RuntimeError if it does.
    """
    if _used not in (None, library):
        raise RuntimeError(
            f"{library} was called, and {_used} before it: a program uses one of them. Remove one of the "
            f"calls: with the first, {_INSTEAD[library]}; with the second, {_INSTEAD[str(_used)]}"
        )


def claim(library: str) -> None:
    """Record that the program uses V1 or V2, once that library is initialised.

    Raises: as `check`.
    """
    global _used
    check(library)
    _used = library


def release(library: str) -> None:
    """Record that the program no longer uses V1 or V2."""
    global _used
    if _used == library:
        _used = None
