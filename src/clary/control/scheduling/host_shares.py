"""Fractions of hosts: several jobs divide the resources of one host of a type.

Where: `placement` maps a job with a fraction to smaller hosts and counts them by it. The user names the fraction in a
hyperparameter (`contract.settings.hyperparameters.HOST_SHARE`). Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from clary.control.scheduling.catalogue import InstanceShape

WHOLE = 1.0
ROUNDING = 1e-9  # ten tenths are a whole


@dataclass(frozen=True, kw_only=True)
class SharedShape:
    """A type's shape as one job sees its part of it."""

    shape: InstanceShape  # with the GPUs of the part; CPUs and memory are still the type's
    of_gpu: float  # fraction of each of its GPUs, above 0 and up to 1


def share_shape(shape: InstanceShape, share: float) -> SharedShape:
    """Return the GPUs that a fraction of a host has: whole ones as long as there is one, else a part of one.

    Args:
        shape: of the type.
        share: above 0 and up to 1.
    """
    units = shape.num_gpus * share
    if share == WHOLE or shape.num_gpus == 0:
        return SharedShape(shape=shape, of_gpu=WHOLE)
    if units + ROUNDING >= 1:
        return SharedShape(shape=replace(shape, num_gpus=int(units + ROUNDING)), of_gpu=WHOLE)
    return SharedShape(shape=replace(shape, num_gpus=1), of_gpu=units)


def note_of(shape: InstanceShape, share: float) -> str:
    """Return the sentence that tells a user the size of a fraction of one type; empty for a whole host.

    Args:
        shape: of the type, not divided.
        share: above 0 and up to 1.
    """
    if share == WHOLE:
        return ""
    shared = share_shape(shape, share)
    gpus = ""
    if shape.num_gpus and shared.of_gpu < WHOLE:
        gpus = f", and {shared.of_gpu:g} of one GPU, whose memory and time no limit divides"
    elif shape.num_gpus:
        gpus = f", and {shared.shape.num_gpus} of {shape.num_gpus} GPUs"
    return f"sagemaker_clary_host_share: each host has {share:g} of the CPUs and the memory of {shape.name}{gpus}"
