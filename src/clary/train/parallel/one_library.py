"""Which of the two libraries a program uses: SMP v1 (`smp.init`) or SMP v2 (`tsm.init`). A program uses one.

Where: both `init` functions claim theirs here, before they wait for other ranks. Both lay out the ranks, each by keys
of its own; together no layer would lie as either says.
"""

from __future__ import annotations

V1, V2 = "smp.init of smdistributed.modelparallel", "tsm.init of torch.sagemaker"
_INSTEAD = {
    V1: "smp.DistributedModel and smp.DistributedOptimizer cut and train models",
    V2: "tsm.transform cuts models, and torch's FSDP trains them",
}
_used: str | None = None


def claim(library: str) -> None:
    """Say that the program uses V1 or V2.

    Raises: RuntimeError if it uses the other one.
    """
    global _used
    if _used not in (None, library):
        raise RuntimeError(
            f"{library} was called, and {_used} before it: a program uses one of them. Leave one out: with the first "
            f"{_INSTEAD[library]}; with the second {_INSTEAD[str(_used)]}"
        )
    _used = library


def release(library: str) -> None:
    """Say that the program uses V1 or V2 no more."""
    global _used
    if _used == library:
        _used = None
