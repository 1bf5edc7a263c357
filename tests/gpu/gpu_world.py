"""Tools of the programs in this folder: the GPU or the CPU in its place, and the refusal to run."""

from __future__ import annotations

import os

import torch

IS_REHEARSAL = bool(os.environ.get("CLARY_CUDA_ON_CPU"))


class Absent(Exception):
    """This machine lacks something that a function needs. The text names it."""


def gpu() -> torch.device:
    """Return the GPU of this rank; all ranks of a host that has one share it. In a rehearsal, the CPU."""
    if IS_REHEARSAL:
        import clary_cuda_on_cpu

        clary_cuda_on_cpu.register()
    if not torch.cuda.is_available():
        raise Absent("torch sees no GPU")
    torch.cuda.set_device(0)
    return torch.device("cuda", 0)


def real_gpu(why: str) -> torch.device:
    """Return the GPU; refuse the test in a rehearsal, for the reason `why`."""
    device = gpu()
    if IS_REHEARSAL:
        raise Absent(f"rehearsed on the CPU: {why}")
    return device
