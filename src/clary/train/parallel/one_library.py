"""Which of the two libraries a program uses: SMP v1 (`smp.init`) or SMP v2 (`tsm.init`). A program uses one.

Where: both `init` functions check before they wait for other ranks, and claim theirs when they are done. Both lay out
the ranks, each by keys of its own; together no layer would lie as either says.
"""

from __future__ import annotations

V1, V2 = "smp.init of smdistributed.modelparallel", "tsm.init of torch.sagemaker"
_INSTEAD = {
    V1: "smp.DistributedModel and smp.DistributedOptimizer cut and train models",
    V2: "tsm.transform cuts models, and torch's FSDP trains them",
}
_used: str | None = None


def check(library: str) -> None:
    """See that the program does not use the other one.

    Raises: RuntimeError if it does.
    """
    if _used not in (None, library):
        raise RuntimeError(
            f"{library} was called, and {_used} before it: a program uses one of them. Leave one out: with the first "
            f"{_INSTEAD[library]}; with the second {_INSTEAD[str(_used)]}"
        )


def claim(library: str) -> None:
    """Say that the program uses V1 or V2, once that one is initialised.

    Raises: as `check`.
    """
    global _used
    check(library)
    _used = library


def release(library: str) -> None:
    """Say that the program uses V1 or V2 no more."""
    global _used
    if _used == library:
        _used = None
