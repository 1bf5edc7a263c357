"""Helpers of the programs in this folder: the GPU, or the CPU in its place, and an exception if neither will do."""

from __future__ import annotations

import os

import torch

IS_REHEARSAL = bool(os.environ.get("CLARY_CUDA_ON_CPU"))


class Absent(Exception):
    """This machine lacks something that a function needs. The text names it."""


def gpu() -> torch.device:
    """Return the GPU of this rank, or the CPU in a rehearsal; ranks of a host with one GPU share it."""
    if IS_REHEARSAL:
        import clary_cuda_on_cpu

        clary_cuda_on_cpu.register()
    if not torch.cuda.is_available():
        raise Absent("torch sees no GPU")
    torch.cuda.set_device(0)
    return torch.device("cuda", 0)


def real_gpu(why: str) -> torch.device:
    """Return the GPU; in a rehearsal raise `Absent` with the reason `why`."""
    device = gpu()
    if IS_REHEARSAL:
        raise Absent(f"rehearsed on the CPU: {why}")
    return device
