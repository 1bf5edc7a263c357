"""What programs of this folder share: the GPU, or the CPU in its place, and what cannot run here."""

from __future__ import annotations

import os

import torch

IS_REHEARSAL = bool(os.environ.get("CLARY_CUDA_ON_CPU"))


class Absent(Exception):
    """This machine does not have what a function needs. The text says what."""


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
    """Return the GPU; a rehearsal cannot do what comes now."""
    device = gpu()
    if IS_REHEARSAL:
        raise Absent(f"rehearsed on the CPU: {why}")
    return device
