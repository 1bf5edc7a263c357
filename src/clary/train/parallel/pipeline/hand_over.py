"""The path of tensors between two ranks of a pipeline: through GPU memory or host memory.

Where: `connection` (the module server) and `executor` (schedules) call `agree` once at their start. `choose_way` is
pure; `agree` tests each path between GPUs with a small tensor first.

[Note: why not NCCL] NCCL matches by order alone, so two ranks that send to each other at the same time would deadlock,
and it refuses two ranks on one GPU. Lent memory (`lending`) has neither limit, and its copies use NVLink if available.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from clary.base.string_enum import StrEnum

VARIABLE = "CLARY_PIPELINE_HAND_OVER"  # "host": never lend memory of this rank's GPU
# size of the smallest lent tensor in bytes: below it, a copy should be cheaper than a loan. Not measured yet
LEAST_BYTES = 1 << 18
_PROBE_LENGTH = 64

_LOG = logging.getLogger(__name__)

Gather = Callable[[Any], Sequence[Any]]  # gathers a value from every rank, by rank


class Way(StrEnum):
    """The memory through which tensors are sent."""

    HOST = "host memory"
    DEVICE = "GPU memory"


@dataclass(frozen=True)
class Seat:
    """A rank's host and GPU, and its ability to lend memory.

    Args:
        host: name of the host, equal only for ranks that can share memory.
        gpu: name of its GPU, equal in all processes of the machine; "" without a GPU.
        visible: names of all GPUs that its process sees.
        refusal: reason why its GPU's memory cannot be lent; "" if it can.
    """

    host: str
    gpu: str = ""
    visible: tuple[str, ...] = ()
    refusal: str = ""


@dataclass(frozen=True)
class Decision:
    """The way from one rank to another, and the reason."""

    way: Way
    reason: str


class Lender(Protocol):
    """Lends this rank's GPU memory to processes of the host, and borrows theirs; see `lending.CudaLender`."""

    device: torch.device

    def lend(self, tensor: torch.Tensor) -> bytes:
        """Return a record of a tensor's current values, which one process may borrow once.

        Args:
            tensor: of any shape and strides; it may change after the call.
        """

    def borrow(self, record: bytes) -> torch.Tensor:
        """Return a new tensor of this rank with the lent values."""


@dataclass(frozen=True)
class HandOver:
    """The ways of one rank.

    Args:
        to: ways by receiving rank.
        source: ways by sending rank.
    """

    lender: Lender
    to: Mapping[int, Decision]
    source: Mapping[int, Decision]

    def is_lent_to(self, rank: int, num_bytes: int) -> bool:
        """Return whether a tensor of this size is lent to a rank in GPU memory."""
        return num_bytes >= LEAST_BYTES and self.to[rank].way is Way.DEVICE

    def is_lent_by(self, rank: int, num_bytes: int) -> bool:
        """Return whether a rank lends a tensor of this size in GPU memory."""
        return num_bytes >= LEAST_BYTES and self.source[rank].way is Way.DEVICE


def choose_way(sender: Seat, receiver: Seat) -> Decision:
    """Return the way from one rank to another, and the reason. Pure."""
    if not sender.gpu or not receiver.gpu:
        return Decision(Way.HOST, f"the {'receiver' if sender.gpu else 'sender'} has no GPU")
    if sender.host != receiver.host:
        return Decision(Way.HOST, "the ranks are on two hosts")
    if sender.refusal:
        return Decision(Way.HOST, f"the sender cannot lend memory of its GPU: {sender.refusal}")
    if sender.gpu not in receiver.visible:
        return Decision(Way.HOST, f"the receiver does not see the sender's GPU {sender.gpu}: CUDA_VISIBLE_DEVICES")
    same = sender.gpu == receiver.gpu
    return Decision(Way.DEVICE, "one GPU has both ranks" if same else "the receiver sees the sender's GPU")


def refusal_of(environ: Mapping[str, str], allocator: str) -> str:
    """Return the reason why a rank does not lend its GPU memory, "" if it does. Pure.

    Raises: ValueError for an unknown value of the variable.
    """
    asked = environ.get(VARIABLE, "auto") or "auto"
    if asked not in ("auto", "host"):
        raise ValueError(f"{VARIABLE} is {asked!r}; expected auto or host")
    if asked == "host":
        return f"{VARIABLE}=host"
    return (
        "" if allocator == "native" else f"torch's allocator is {allocator}, whose memory other processes cannot open"
    )


def agree(rank: int, own: Seat, make_lender: Callable[[], Lender], gather: Gather) -> HandOver | None:
    """Agree on all ways with all ranks, and test the ways between GPUs. All ranks call it at the same time.

    Args:
        rank: this rank's index in the results of `gather`.
        make_lender: called if this rank takes part in a way between GPUs.
    Returns: this rank's ways; None if `choose_way` leads no way to or from this rank through GPU memory.
    """
    seats = list(gather(own))
    others = [one for one in range(len(seats)) if one != rank]
    to = {one: choose_way(own, seats[one]) for one in others}
    source = {one: choose_way(seats[one], own) for one in others}
    if not any(_lends(one, other) for one in seats for other in seats if one is not other):
        _tell(rank, to)
        return None  # equal on all ranks, since all have the same seats
    is_taking_part = any(one.way is Way.DEVICE for one in (*to.values(), *source.values()))
    lender = make_lender() if is_taking_part else None
    lent = gather({one: _try_to_lend(lender, rank) for one, found in to.items() if found.way is Way.DEVICE})
    failures = gather({one: _try_to_borrow(lender, lent[one][rank], one) for one in others if rank in lent[one]})
    for one in others:
        to[one] = _after_trial(to[one], failures[one].get(rank))
        source[one] = _after_trial(source[one], failures[rank].get(one))
    _tell(rank, to)
    return None if lender is None else HandOver(lender, to, source)


def _lends(sender: Seat, receiver: Seat) -> bool:
    return choose_way(sender, receiver).way is Way.DEVICE


def _try_to_lend(lender: Lender | None, rank: int) -> bytes | str:
    """Lend a small test tensor; return its record, or the reason of the failure."""
    assert lender is not None
    try:
        return lender.lend(torch.full((_PROBE_LENGTH,), float(rank), device=lender.device))
    except RuntimeError as error:
        return f"lending failed: {error}"


def _try_to_borrow(lender: Lender | None, lent: bytes | str, rank: int) -> str:
    """Borrow a rank's test tensor; return the reason of a failure, or ""."""
    assert lender is not None
    if isinstance(lent, str):
        return lent
    try:
        found = lender.borrow(lent).cpu()
    except RuntimeError as error:
        return f"borrowing failed: {error}"
    return "" if bool((found == rank).all()) else f"a trial gave {found[0].item():g}, expected {rank}"


def _after_trial(decision: Decision, failure: str | None) -> Decision:
    if decision.way is Way.HOST or not failure:
        return decision
    return Decision(Way.HOST, failure.splitlines()[0])


def _tell(rank: int, to: Mapping[int, Decision]) -> None:
    for one, decision in to.items():
        _LOG.info("tensors of rank %d go to rank %d in %s: %s", rank, one, decision.way.value, decision.reason)


def own_seat(device: torch.device, host: str) -> Seat:
    """Return the seat of this rank.

    Raises: ValueError as `refusal_of`.
    """
    if device.type != "cuda":
        return Seat(host)
    names = tuple(str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count()))
    index = torch.cuda.current_device() if device.index is None else device.index
    return Seat(host, names[index], names, refusal_of(os.environ, torch.cuda.get_allocator_backend()))
