"""Fractions of hosts: several jobs divide the resources of one host of a type.

Where: `placement` maps a job with a fraction to smaller hosts, each of which counts as that fraction of a host. The
user names the fraction in a hyperparameter (`contract.settings.hyperparameters.HOST_SHARE`). Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from clary.control.scheduling.catalogue import InstanceShape

WHOLE = 1.0
ROUNDING = 1e-9  # tolerance, so that ten tenths count as a whole


@dataclass(frozen=True, kw_only=True)
class SharedShape:
    """The part of a type's shape that one job gets."""

    shape: InstanceShape  # shape with the part's GPUs, but the CPUs and memory of the whole type
    of_gpu: float  # fraction of each of these GPUs, above 0 and up to 1


def share_shape(shape: InstanceShape, share: float) -> SharedShape:
    """Return the GPUs of a fraction of a host: whole GPUs if that is at least one GPU, else a part of one GPU.

    Args:
        shape: shape of the type.
        share: above 0 and up to 1.
    """
    units = shape.num_gpus * share
    if share == WHOLE or shape.num_gpus == 0:
        return SharedShape(shape=shape, of_gpu=WHOLE)
    if units + ROUNDING >= 1:
        return SharedShape(shape=replace(shape, num_gpus=int(units + ROUNDING)), of_gpu=WHOLE)
    return SharedShape(shape=replace(shape, num_gpus=1), of_gpu=units)


def note_of(shape: InstanceShape, share: float) -> str:
    """Return a sentence for users on the size of a fraction of one type; empty for a whole host.

    Args:
        shape: shape of the whole type.
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
