"""Execution of a schedule: every rank runs its own list of actions.

    schedule = one_f_one_b(num_stages=2, num_microbatches=4)
    stages = {stage: parts[stage] for stage in schedule.stages_of(rank)}
    pipeline = Pipeline(stages, schedule, group, loss_fn)
    losses = pipeline.step(inputs, targets)     # gradients are in the parameters
    optimizer.step()

`schedule` has the order of actions, `stage` computes them, and `exchange` transfers tensors between stages. A schedule
is simulated before it runs; a step that fails on any rank fails on all ranks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from clary.train.collective.bootstrap.hosts import host_identity
from clary.train.collective.settings import CollectiveSettings
from clary.train.parallel.errors import ParallelError, RankLost
from clary.train.parallel.pipeline.exchange import Exchange, Tensors, Transfer, transfer_to
from clary.train.parallel.pipeline.hand_over import HandOver, agree, own_seat
from clary.train.parallel.pipeline.lending import CudaLender
from clary.train.parallel.pipeline.record import ActionRun, Run
from clary.train.parallel.pipeline.schedule import Action, Kind, Schedule, simulate
from clary.train.parallel.pipeline.stage import Stage

DEFAULT_TIMEOUT_S = 300.0  # timeout of one wait for another rank, which may be compiling kernels
NUM_RECEIVES_AHEAD = 2  # receives posted ahead of their actions; each holds a buffer for its tensors

LossFunction = Callable[[Any, Any], torch.Tensor]


class Pipeline:
    """The stages of one rank, and the schedule that it runs with the other ranks of its group.

    All ranks construct it and call `step` at the same time. After an error the group is closed and the pipeline is
    unusable: start the program again, from a checkpoint.

    Args:
        stages: modules of this rank's stages in the schedule, by stage index; see `Stage`. Each takes the outputs of
            the stage before.
        schedule: schedule for the group's ranks, in the group's order.
        group: process group that sends tensors from host memory and matches them by tag, such as gloo and smddp.
        loss_fn: called with the last stage's outputs and the microbatch's targets; returns a mean over the microbatch,
            of one element.
        device: device of the stages; of one kind on all ranks. Tensors between GPUs of one host stay in GPU memory if
            possible; see `hand_over`.
        timeout_s: timeout of every wait for another rank.
        ends_together: whether a step ends when all ranks have finished their lists. If so, all ranks get the losses,
            and a rank that is lost in its last actions is noticed at once. Otherwise each rank returns when its list is
            finished, the rank of the last stage alone gets the losses, and such a lost rank is noticed in the next
            step.

    Raises:
        ScheduleError: the schedule would deadlock; no rank has sent anything yet.
        ValueError: stages or ranks do not match the schedule.
    """

    def __init__(
        self,
        stages: Mapping[int, nn.Module],
        schedule: Schedule,
        group: dist.ProcessGroup,
        loss_fn: LossFunction,
        *,
        device: torch.device | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        ends_together: bool = True,
    ) -> None:
        simulate(schedule)
        size, self.rank = dist.get_world_size(group), dist.get_rank(group)
        if size != len(schedule.ranks):
            raise ValueError(f"schedule {schedule.name} is for {len(schedule.ranks)} ranks; the group has {size}")
        if tuple(sorted(stages)) != schedule.stages_of(self.rank):
            raise ValueError(
                f"rank {self.rank} was given the stages {sorted(stages)}; schedule {schedule.name} gives it "
                f"{list(schedule.stages_of(self.rank))}"
            )
        self.schedule = schedule
        self._group = group
        self._loss_fn = loss_fn
        self._device = device or torch.device("cpu")
        self._ends_together = ends_together
        self._stages = {index: Stage(module, index) for index, module in stages.items()}
        self._exchange = Exchange(
            schedule, group, device=self._device, timeout_s=timeout_s, hand_over=_agree(group, self._device)
        )
        self._actions = schedule.ranks[self.rank]
        self._inputs: list[Any] = []
        self._targets: list[Any] = []
        self._losses: list[torch.Tensor] = []
        self._needed = [transfer_to(action, schedule) for action in self._actions]
        self._made = self._find_made()
        self._home = schedule.rank_of()[schedule.num_stages - 1]
        self._failure = ""
        self._began_at_s = 0.0  # start of the last step, since the epoch
        self.last_run: tuple[ActionRun, ...] = ()

    def step(self, inputs: Any = None, targets: Any = None) -> torch.Tensor | None:
        """Run forward and backward of all microbatches; add the gradients of their mean loss to the parameters' `grad`.

        Args:
            inputs: on the rank of the first stage, its input: a tensor or a tuple. Axis 0 of each tensor is cut into
                microbatches of equal length.
            targets: on the rank of the last stage, for `loss_fn`: a tensor or a tuple, cut in the same way, or None.
        Returns: the losses of all microbatches, shape [microbatches], float64; None on the other ranks if
            `ends_together` is off.
        Raises:
            ParallelError: an action failed here; the text names rank, stage, microbatch and action.
            RankLost: another rank has ended, or does not send within the timeout; the text names the rank and the
                transfer.
            ValueError: the number of microbatches does not divide the batch.
        """
        if self._failure:
            raise ParallelError(f"this pipeline has failed before: {self._failure}")
        try:
            losses = self._run(inputs, targets)
        except BaseException as error:
            self._failure = str(error) or repr(error)
            first = self._exchange.tell_failure(self._failure)
            self._exchange.close()
            for stage in self._stages.values():
                stage.forget()
            self._forget_batch()
            if isinstance(error, RankLost) and first != self._failure:
                raise RankLost(f"{self._failure}; the first to fail said: {first}") from error
            raise
        self._forget_batch()
        return losses

    def gather_last_run(self) -> Run:
        """Return the run of the last step on all ranks, with times since the first rank began. All ranks call it.

        Times of different hosts differ by the offset of their clocks.
        """
        own = (self._began_at_s, self.last_run)
        gathered: list[Any] = [None] * len(self.schedule.ranks)
        dist.all_gather_object(gathered, own, group=self._group)
        first_s = min(began_at_s for began_at_s, _ in gathered)
        return Run(
            self.schedule.name,
            tuple(
                tuple(
                    ActionRun(one.action, one.begin_s + began_at_s - first_s, one.end_s + began_at_s - first_s)
                    for one in actions
                )
                for began_at_s, actions in gathered
            ),
        )

    def forget_shapes(self) -> None:
        """Allow other shapes of batches in the next step. All ranks call it between the same steps."""
        self._exchange.forget_shapes()

    def _run(self, inputs: Any, targets: Any) -> torch.Tensor | None:
        num_microbatches = self.schedule.num_microbatches
        self._began_at_s, began_s = time.time(), time.monotonic()
        self._inputs = self._cut("inputs", inputs) if 0 in self._stages else []
        self._targets = self._cut("targets", targets) if self.rank == self._home else []
        self._losses = [torch.empty(())] * num_microbatches
        runs: list[ActionRun] = []
        receives = [one for one in self._needed if one is not None and not self._exchange.is_local(one)]
        num_received = 0
        for action, needed in zip(self._actions, self._needed, strict=True):
            received: Tensors | None = None
            for one in receives[num_received : num_received + NUM_RECEIVES_AHEAD]:
                self._exchange.post(one)
            if needed is not None:
                received = self._exchange.receive(needed)
                num_received += not self._exchange.is_local(needed)
            begin_s = time.monotonic()
            given = self._perform(action, received)
            runs.append(ActionRun(action, begin_s - began_s, time.monotonic() - began_s))
            if action in self._made:
                self._exchange.send(self._made[action], given)
        self.last_run = tuple(runs)
        losses = torch.stack(self._losses).to("cpu", torch.float64) if self.rank == self._home else None
        if self._ends_together:
            return self._exchange.end_together(losses, self._home)
        self._exchange.finish()
        return losses

    def _forget_batch(self) -> None:
        self._inputs, self._targets, self._losses = [], [], []

    def _perform(self, action: Action, received: Tensors | None) -> Tensors:
        """Run an action and return its tensors for the neighbouring stage, if any."""
        stage, microbatch = self._stages[action.stage], action.microbatch
        try:
            if action.kind is Kind.FORWARD:
                return self._forward(stage, microbatch, self._inputs[microbatch] if received is None else received)
            if action.kind is Kind.WEIGHT:
                stage.backward_weight(microbatch)
                return ()
            gradients = (self._seed(microbatch),) if received is None else received
            backward = stage.backward if action.kind is Kind.BACKWARD else stage.backward_input
            return backward(microbatch, gradients)
        except Exception as error:
            raise ParallelError(
                f"rank {self.rank} of pipeline {self.schedule.name} failed at {action.words} in {stage.name}: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _forward(self, stage: Stage, microbatch: int, inputs: Tensors) -> Tensors:
        if stage.index + 1 < self.schedule.num_stages:
            return stage.forward(microbatch, inputs)

        def loss_of(result: Any) -> torch.Tensor:
            loss = self._loss_fn(result, self._targets[microbatch])
            if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
                raise ValueError(f"loss_fn gave {_described(loss)}; expected a tensor of one element")
            return loss.reshape(())

        (loss,) = stage.forward(microbatch, inputs, finish=loss_of)
        self._losses[microbatch] = loss.detach()
        return ()

    def _seed(self, microbatch: int) -> torch.Tensor:
        """Return the gradient of a microbatch's loss: the step's loss is the mean over microbatches."""
        return torch.full_like(self._losses[microbatch], 1 / self.schedule.num_microbatches)

    def _find_made(self) -> dict[Action, Transfer]:
        """Return the transfers of this rank's actions whose results another stage needs, by action."""
        transfers = (transfer_to(action, self.schedule) for actions in self.schedule.ranks for action in actions)
        return {one.source: one for one in transfers if one is not None and one.source.stage in self._stages}

    def _cut(self, name: str, value: Any) -> list[Any]:
        """Cut a batch into microbatches: inputs into tuples, targets into tensors or, if several are given, tuples."""
        num_microbatches = self.schedule.num_microbatches
        if name == "inputs" and isinstance(value, torch.Tensor):
            value = (value,)
        if value is None and name == "targets":
            return [None] * num_microbatches
        parts = [self._cut_tensor(name, one) for one in (value if isinstance(value, list | tuple) else (value,))]
        if isinstance(value, list | tuple):
            return [tuple(part[number] for part in parts) for number in range(num_microbatches)]
        return list(parts[0])

    def _cut_tensor(self, name: str, value: Any) -> Sequence[torch.Tensor]:
        num_microbatches = self.schedule.num_microbatches
        if not isinstance(value, torch.Tensor) or not value.dim() or value.shape[0] % num_microbatches:
            raise ValueError(
                f"rank {self.rank} of pipeline {self.schedule.name} was given {_described(value)} as {name}; expected "
                f"tensors whose length along axis 0 is a multiple of {num_microbatches} microbatches"
            )
        return value.to(self._device).chunk(num_microbatches) if len(value) else [value] * num_microbatches


def _agree(group: dist.ProcessGroup, device: torch.device) -> HandOver | None:
    """Agree with the other ranks on the tensors that stay in GPU memory."""
    if device.type != "cuda":
        return None
    rank = dist.get_rank(group)
    seat = own_seat(device, host_identity(CollectiveSettings.from_environment(os.environ), rank))

    def gather(value: Any) -> list[Any]:
        gathered: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(gathered, value, group=group)
        return gathered

    return agree(rank, seat, lambda: CudaLender(device, seat.visible), gather)


def _described(value: Any) -> str:
    return f"a tensor of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
