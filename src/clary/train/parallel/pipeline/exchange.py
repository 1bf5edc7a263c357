"""Exchange of activations and gradients between the ranks of a pipeline.

Where: `executor` sends the results and receives the inputs of its schedule's actions through it.

[Note: no deadlock] A send never blocks: it is posted, and its tensor held until the send is known to be complete. A
receive is posted a few receives in advance, so that a faster neighbour finds it ready. The rank waits for it when its
action begins. So a rank waits only for the actions that its next action needs, and a simulation has shown that these
actions run.

[Note: sends that have gone] No backend can report completion of a send without blocking. The schedule implies it: if
the receiver of a send made a tensor after it received the send, the arrival of that tensor proves that the send is
complete. Only then does this rank wait for the send, which returns at once, and release its tensor; the step waits for
the remaining sends at its end.

[Note: shapes] Dtypes and shapes of a link are sent once, before its first tensors. Gradients have the shapes of their
activations.

[Note: host memory] Tensors are sent from host memory and matched by tag, as gloo, smddp and MPI support; a GPU's
tensors are copied. If ranks agreed to lend each other GPU memory (`hand_over`), a record is sent in place of a tensor.
NCCL is not used, as it matches by order alone: two ranks that send to each other at the same time would deadlock.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from clary.train.parallel.errors import RankLost
from clary.train.parallel.pipeline.hand_over import HandOver
from clary.train.parallel.pipeline.lending import arrived
from clary.train.parallel.pipeline.schedule import Action, Kind, Schedule, needs

Tensors = tuple[torch.Tensor, ...]

MAX_TENSORS = 16  # maximum number of tensors between two stages
_HEAD_BYTES = 4096  # size of the record that describes shapes
_RECORD_BYTES = 2048  # size of the record of a lent tensor
# Tags of pipelines are higher than the tags of scripts and of `groups`.
_FIRST_HEAD_TAG, _FIRST_TENSOR_TAG = 1 << 16, 1 << 17
_END_TAG, _NEVER_TAG = (1 << 16) - 1, (1 << 16) - 2
_FAILURE_KEY = "clary-pipeline-failure"
_CLOSING_LIMIT = timedelta(milliseconds=1)


@dataclass(frozen=True)
class Transfer:
    """The result of one action that an action of a neighbouring stage needs."""

    source: Action
    sink: Action

    @property
    def is_activation(self) -> bool:
        """Whether it goes from one forward action to the next."""
        return self.source.kind is Kind.FORWARD

    def __str__(self) -> str:
        return f"the {'activations' if self.is_activation else 'gradients'} of {self.source.words}"


def transfer_to(action: Action, schedule: Schedule) -> Transfer | None:
    """Return the transfer that an action needs from a neighbouring stage, or None."""
    return next((Transfer(one, action) for one in needs(action, schedule) if one.stage != action.stage), None)


@dataclass(frozen=True)
class _Shape:
    dtype: torch.dtype
    sizes: tuple[int, ...]
    wants_gradient: bool

    @property
    def num_bytes(self) -> int:
        return int(math.prod(self.sizes) * self.dtype.itemsize)


@dataclass
class _Send:
    work: Any
    tensor: torch.Tensor  # held: autograd may free it before it is sent
    transfer: Transfer


class Exchange:
    """The sends and receives of one rank.

    Args:
        group: the ranks of the schedule, in its order; see [Note: host memory].
        device: device of received tensors.
        timeout_s: timeout of one wait.
        hand_over: decides which tensors are lent in GPU memory; None lends no tensors.
    """

    def __init__(
        self,
        schedule: Schedule,
        group: dist.ProcessGroup,
        *,
        device: torch.device,
        timeout_s: float,
        hand_over: HandOver | None = None,
    ) -> None:
        self._schedule = schedule
        self._group = group
        self._device = device
        self._hand_over = hand_over
        self._timeout = timedelta(seconds=timeout_s)
        self._members = dist.get_process_group_ranks(group)
        self.rank = dist.get_rank(group)
        self._rank_of = schedule.rank_of()
        self._place = {action: place for actions in schedule.ranks for place, action in enumerate(actions)}
        self._shapes: dict[tuple[int, int], list[_Shape]] = {}  # shapes of activations, by the stages of a link
        self._kept: dict[Transfer, Tensors] = {}  # tensors between two stages of this rank
        self._posted: dict[Transfer, list[tuple[Any, torch.Tensor]]] = {}
        self._sends: dict[int, list[_Send]] = {}  # sends by receiver

    def forget_shapes(self) -> None:
        """Make the next step send shapes again. All ranks call it between the same steps."""
        self._shapes.clear()

    def is_local(self, transfer: Transfer) -> bool:
        """Return whether both stages lie on this rank."""
        return self._rank_of[transfer.source.stage] == self._rank_of[transfer.sink.stage]

    def send(self, transfer: Transfer, tensors: Sequence[torch.Tensor]) -> None:
        """Send the result of an action to its neighbour.

        Raises:
            RankLost: the receiver has ended.
            ValueError: too many tensors, or other shapes than were sent before.
        """
        if self.is_local(transfer):
            self._kept[transfer] = tuple(tensors)
            return
        if transfer.is_activation:
            self._tell_shapes(transfer, tensors)
        for number, tensor in enumerate(tensors):
            self._post_send(transfer, self._ready_to_go(transfer, tensor.detach()), self._tag(transfer, number))

    def post(self, transfer: Transfer) -> None:
        """Post the receive of a transfer, if its shapes are known and it is not posted yet."""
        shapes = self._shapes_of(transfer)
        if self.is_local(transfer) or transfer in self._posted or shapes is None:
            return
        self._posted[transfer] = [
            self._post_receive(transfer, self._room_for(transfer, shape), self._tag(transfer, number))
            for number, shape in enumerate(shapes)
        ]

    def receive(self, transfer: Transfer) -> Tensors:
        """Wait for the tensors that an action needs; activations require a gradient if the sender's do.

        Raises: RankLost if the sender has ended, or does not send within the timeout.
        """
        if self.is_local(transfer):
            return self._kept.pop(transfer)
        if self._shapes_of(transfer) is None:
            self._shapes[_link(transfer)] = self._receive_shapes(transfer)
        self.post(transfer)
        received = self._posted.pop(transfer)
        for work, _ in received:
            self._wait(work, self._receiving(transfer))
        self._release_sends(transfer)
        shapes = self._shapes_of(transfer)
        assert shapes is not None
        tensors = [self._arrived(transfer, shape, tensor) for shape, (_, tensor) in zip(shapes, received, strict=True)]
        if transfer.is_activation:
            for tensor, shape in zip(tensors, self._shapes[_link(transfer)], strict=True):
                tensor.requires_grad_(shape.wants_gradient)
        return tuple(tensors)

    def finish(self) -> None:
        """Wait until all sends are complete.

        Raises: RankLost if a receiver has ended, or does not receive within the timeout.
        """
        for sends in self._sends.values():
            for one in sends:
                self._wait(one.work, self._sending(one.transfer))
            sends.clear()

    def end_together(self, losses: torch.Tensor | None, home: int) -> torch.Tensor:
        """Wait until all ranks have called it and all sends are complete; return the losses on all ranks.

        Args:
            losses: [microbatches], float64, on rank `home`; None on all other ranks.
            home: the rank of the pipeline that has the losses.

        Raises: RankLost if a rank has ended, or does not call it within the timeout.
        """
        # Wait for receives first: if the peer ends, gloo fails a receive at once, but a send only at its timeout.
        word = torch.zeros(1)
        sends = []
        if losses is None:
            losses = torch.empty(self._schedule.num_microbatches, dtype=torch.float64)
            own = f"after its last action {self._schedule.ranks[self.rank][-1].words}"
            sends.append(self._end_send(word, home, telling := f"{own} told rank {home} so"))
            self._end_receive(losses, home, f"{own} waited for rank {home} to report that all are done")
        else:
            telling = "told the other ranks the losses"
            others = [rank for rank in range(len(self._members)) if rank != self.rank]
            for rank in others:
                last = self._schedule.ranks[rank][-1].words
                self._end_receive(word, rank, f"waited for rank {rank} to have done its last action {last}")
            sends += [self._end_send(losses, rank, telling) for rank in others]
        self.finish()
        for work in sends:
            self._wait(work, telling)
        return losses

    def tell_failure(self, words: str) -> str:
        """Write this rank's failure to the group's store; return the failure of the first rank that failed."""
        # The store may have ended with the rank that served it; older torch does not expose the store.
        with contextlib.suppress(RuntimeError, AttributeError):
            return str(self._group.get_group_store().compare_set(_FAILURE_KEY, "", words).decode())
        return words

    def close(self) -> None:
        """Close the group, so that ranks that wait for this rank fail at once. This rank cannot send afterwards."""
        self._kept.clear()
        if len(self._members) == 1:
            return
        if dist.get_backend(self._group) == "gloo":
            # gloo has no abort across ranks, but a receive that times out closes its connection, which peers notice.
            for rank, member in enumerate(self._members):
                if rank != self.rank:
                    with contextlib.suppress(RuntimeError):
                        never = torch.empty(1)
                        dist.irecv(never, member, group=self._group, tag=_NEVER_TAG).wait(_CLOSING_LIMIT)
        else:
            with contextlib.suppress(RuntimeError):
                self._group.abort()
        self._posted.clear()
        self._sends.clear()

    # Shapes.

    def _shapes_of(self, transfer: Transfer) -> list[_Shape] | None:
        if transfer.is_activation:
            return self._shapes.get(_link(transfer))
        told = self._shapes.get((transfer.sink.stage, transfer.source.stage))
        return None if told is None else [shape for shape in told if shape.wants_gradient]

    def _tell_shapes(self, transfer: Transfer, tensors: Sequence[torch.Tensor]) -> None:
        shapes = [_Shape(one.dtype, tuple(one.shape), one.requires_grad) for one in tensors]
        told = self._shapes.setdefault(_link(transfer), shapes)
        if told is not shapes:
            if told != shapes:
                raise ValueError(
                    f"{transfer.source.words} gave {_words(shapes)}; expected {_words(told)}, as rank "
                    f"{self._rank_of[transfer.sink.stage]} was told: give all batches the same shape, or call "
                    "forget_shapes on all ranks before a step with other shapes"
                )
            return
        text = json.dumps([[str(one.dtype), one.sizes, one.wants_gradient] for one in shapes]).encode()
        if len(tensors) > MAX_TENSORS or len(text) > _HEAD_BYTES:
            raise ValueError(f"{transfer.source.words} gave {len(tensors)} tensors; expected at most {MAX_TENSORS}")
        head = torch.frombuffer(bytearray(text.ljust(_HEAD_BYTES)), dtype=torch.uint8)
        self._post_send(transfer, head, _FIRST_HEAD_TAG + transfer.source.stage)

    def _receive_shapes(self, transfer: Transfer) -> list[_Shape]:
        head = torch.empty(_HEAD_BYTES, dtype=torch.uint8)
        work, _ = self._post_receive(transfer, head, _FIRST_HEAD_TAG + transfer.source.stage)
        self._wait(work, self._receiving(transfer))
        told = json.loads(head.numpy().tobytes())
        return [_Shape(getattr(torch, name.removeprefix("torch.")), tuple(sizes), wants) for name, sizes, wants in told]

    # Lent GPU memory.

    def _ready_to_go(self, transfer: Transfer, tensor: torch.Tensor) -> torch.Tensor:
        hand_over, rank = self._hand_over, self._rank_of[transfer.sink.stage]
        if hand_over is None or not hand_over.is_lent_to(rank, tensor.nbytes):
            return tensor.to("cpu").contiguous()
        record = hand_over.lender.lend(tensor)
        if len(record) > _RECORD_BYTES:
            raise ValueError(f"the record of a lent tensor has {len(record)} bytes; expected at most {_RECORD_BYTES}")
        return torch.frombuffer(bytearray(record.ljust(_RECORD_BYTES, b"\0")), dtype=torch.uint8)

    def _room_for(self, transfer: Transfer, shape: _Shape) -> torch.Tensor:
        if self._is_lent(transfer, shape):
            return torch.empty(_RECORD_BYTES, dtype=torch.uint8)
        return torch.empty(shape.sizes, dtype=shape.dtype)

    def _arrived(self, transfer: Transfer, shape: _Shape, tensor: torch.Tensor) -> torch.Tensor:
        if self._hand_over is not None and self._is_lent(transfer, shape):
            tensor = self._hand_over.lender.borrow(bytes(tensor.tolist()))
        return arrived(tensor, self._device)

    def _is_lent(self, transfer: Transfer, shape: _Shape) -> bool:
        rank = self._rank_of[transfer.source.stage]
        return self._hand_over is not None and self._hand_over.is_lent_by(rank, shape.num_bytes)

    # Calls of torch.distributed, and texts of its failures.

    def _tag(self, transfer: Transfer, number: int) -> int:
        link = 2 * transfer.source.stage + transfer.is_activation
        message = link * self._schedule.num_microbatches + transfer.source.microbatch
        return _FIRST_TENSOR_TAG + message * MAX_TENSORS + number

    def _post_send(self, transfer: Transfer, tensor: torch.Tensor, tag: int) -> None:
        rank = self._rank_of[transfer.sink.stage]
        with self._blaming(self._sending(transfer)):
            work = dist.isend(tensor, self._members[rank], group=self._group, tag=tag)
        self._sends.setdefault(rank, []).append(_Send(work, tensor, transfer))

    def _post_receive(self, transfer: Transfer, tensor: torch.Tensor, tag: int) -> tuple[Any, torch.Tensor]:
        rank = self._rank_of[transfer.source.stage]
        with self._blaming(self._receiving(transfer)):
            return dist.irecv(tensor, self._members[rank], group=self._group, tag=tag), tensor

    def _release_sends(self, transfer: Transfer) -> None:
        """Release the sends that the arrival of `transfer` proves complete; see [Note: sends that have gone]."""
        rank, place = self._rank_of[transfer.source.stage], self._place[transfer.source]
        held = []
        for one in self._sends.get(rank, []):
            if self._place[one.transfer.sink] <= place:
                self._wait(one.work, self._sending(one.transfer))
            else:
                held.append(one)
        self._sends[rank] = held

    def _receiving(self, transfer: Transfer) -> str:
        return f"at {transfer.sink.words} waited for {transfer} from rank {self._rank_of[transfer.source.stage]}"

    def _sending(self, transfer: Transfer) -> str:
        return f"after {transfer.source.words} sent {transfer} to rank {self._rank_of[transfer.sink.stage]}"

    def _end_send(self, tensor: torch.Tensor, rank: int, doing: str) -> Any:
        with self._blaming(doing):
            return dist.isend(tensor, self._members[rank], group=self._group, tag=_END_TAG)

    def _end_receive(self, tensor: torch.Tensor, rank: int, doing: str) -> None:
        with self._blaming(doing):
            dist.irecv(tensor, self._members[rank], group=self._group, tag=_END_TAG).wait(self._timeout)

    def _wait(self, work: Any, doing: str) -> None:
        with self._blaming(doing):
            work.wait(self._timeout)

    @contextlib.contextmanager
    def _blaming(self, doing: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise RankLost(
                f"rank {self.rank} of pipeline {self._schedule.name} {doing}, at most "
                f"{self._timeout.total_seconds():g} s: {error}"
            ) from error


def _link(transfer: Transfer) -> tuple[int, int]:
    return transfer.source.stage, transfer.sink.stage


def _words(shapes: Sequence[_Shape]) -> str:
    return ", ".join(f"{str(one.dtype).removeprefix('torch.')}{list(one.sizes)}" for one in shapes)
