"""The path of CUDA tensors: through NCCL, or through host memory.

Where: `process_group` decides once per group, at the first collective on CUDA tensors, in which all ranks of the group
take part. All ranks choose the same path, because each has the placements of all. Sends and receives go through host
memory on every path: two ranks cannot choose without the others. This code has never run on a GPU: the project has had
none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from clary.base.string_enum import StrEnum

_RECORD_BYTES = 256


class Path(StrEnum):
    """Where the bytes of CUDA tensors are reduced and moved."""

    NCCL = "nccl"
    STAGED = "staged"


@dataclass(frozen=True)
class Placement:
    """The GPU of a rank.

    Args:
        device: identifier that is equal for ranks that share a GPU, wherever they run; "" for a rank without a GPU.
        has_nccl: whether the rank's torch has NCCL.
    """

    device: str
    has_nccl: bool


def choose_path(placements: Sequence[Placement]) -> tuple[Path, str]:
    """Return the path for a group with these ranks, in order, and the reason."""
    without = [rank for rank, placement in enumerate(placements) if not placement.device]
    if without:
        return Path.STAGED, f"rank {without[0]} has no GPU"
    first_on: dict[str, int] = {}
    for rank, placement in enumerate(placements):
        other = first_on.setdefault(placement.device, rank)
        if other != rank:
            return Path.STAGED, f"ranks {other} and {rank} share GPU {placement.device}, which NCCL refuses"
    lacking = [rank for rank, placement in enumerate(placements) if not placement.has_nccl]
    if lacking:
        return Path.STAGED, f"the torch of rank {lacking[0]} has no NCCL"
    return Path.NCCL, "every rank has a GPU of its own"


def own_placement(device: torch.device) -> Placement:
    """Return the placement of this rank, whose tensors lie on `device`."""
    properties = torch.cuda.get_device_properties(device)
    return Placement(str(properties.uuid), dist.is_nccl_available())


def encode(placement: Placement) -> torch.Tensor:
    """Return a placement as bytes, shape [_RECORD_BYTES], for an all-gather on host memory.

    Raises: ValueError for a device name that is too long.
    """
    text = f"{int(placement.has_nccl)}{placement.device}".encode()
    if len(text) > _RECORD_BYTES:
        raise ValueError(f"the name of GPU {placement.device!r} has over {_RECORD_BYTES - 1} bytes")
    return torch.tensor(list(text.ljust(_RECORD_BYTES, b"\0")), dtype=torch.uint8)


def decode(record: torch.Tensor) -> Placement:
    """Return the placement of a record of `encode`, shape [_RECORD_BYTES]."""
    text = bytes(record.tolist()).rstrip(b"\0").decode()
    return Placement(text[1:], text[0] == "1")
