"""A model whose replicas average gradients: it tracks gradients, and averages them by a sum or by a script's hook.

Where: base class of `DistributedModel`; before a step the optimizer calls its `settle_gradients`.

[Note: buffers] Replicas share buffers right after gradients, when all have met and are known to be at the same step. If
they do not meet there, because the optimizer reduces gradients or this rank trains no parameter, they do so after the
optimizer's step. In `join` replicas may be at different steps, and share no buffers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import torch
import torch.distributed as dist

from clary.train.parallel.errors import ParallelError
from clary.train.parallel.layout.mesh import Along
from clary.train.parallel.mistakes.changes import Watched, refuse_newly_trained
from clary.train.parallel.misuse import NO_BACKWARD, Passes, refuse_untouched
from clary.train.parallel.reduce.buckets import Replicated
from clary.train.parallel.reduce.buffers import SharedBuffers
from clary.train.parallel.reduce.hooks import CommunicationHook, Hook
from clary.train.parallel.reduce.joining import joining
from clary.train.parallel.reduce.ordered import OrderedSums
from clary.train.parallel.reduce.reducer import GradientReducer
from clary.train.parallel.runtime import Runtime
from clary.train.parallel.stateful_model import StatefulModel
from clary.train.parallel.step import microbatch

# Whether `DistributedModel.backward`, which divides initial gradients itself, started the running backward pass.
_is_seeded: ContextVar[bool] = ContextVar("clary_is_seeded", default=False)


class ReducingModel(StatefulModel):
    """Tracks the gradients of steps and reduces them.

    Args:
        module: the wrapped model.
        averages: whether gradients of a step are the mean over its microbatches.
        passes_per_step: number of steps with a backward pass per reduction.
        bucket_bytes: size of a bucket of gradients, in bytes.
        overlaps: whether buckets are sent during the backward pass.
        shares_buffers: whether replicas take the first one's buffers with every reduction, and so before the next
            step's forward pass.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        runtime: Runtime,
        *,
        averages: bool,
        passes_per_step: int,
        bucket_bytes: int,
        overlaps: bool,
        shares_buffers: bool,
    ) -> None:
        super().__init__(module, runtime)
        self._is_sharded = runtime.configuration.sharded_data_parallel_degree > 1
        self._averages, self._passes_per_step = averages, passes_per_step
        self._bucket_bytes, self._overlaps = bucket_bytes, overlaps
        self._shares_buffers = shares_buffers
        self._buffers_of_replicas: SharedBuffers | None = None  # set once modules have their ranks
        self.num_steps = 0  # number of the optimizer's steps
        self._num_passes = 0  # steps with a backward pass since the last reduction
        self._has_gradients = False  # whether this step has computed gradients
        self._is_dirty = False  # whether gradients have arrived since the last reduction
        self._is_in_step = False
        # Passes of the running step, and of all steps since the optimizer's last step: whether the model was called for
        # training, and whether a backward pass has begun. Either without the other is a silent mistake.
        self._goes = Passes()
        self._has_gone = Passes()
        self._reducer: GradientReducer | None = None
        self._ordered: OrderedSums | None = None
        self._hook_handles: list[Any] = []  # hooks on parameters
        self._watched: Watched | None = None  # set once modules have their ranks
        self._communication_hook: CommunicationHook | None = None

    def register_comm_hook(self, state: Any, hook: Hook) -> None:
        """Let `hook(state, bucket)` average gradients over replicas and microbatches, as SMP's documentation has it.

        Args:
            hook: function of a bucket (`buffer()`, `gradients()`, `parameters()`, `index()`, `is_last()`) with sums
                over this replica's microbatches, which returns a future of the means. All replicas call it in the order
                of buckets; a single replica calls it, too. It gets the parameters that all ranks of
                `get_dp_process_group` hold. Slices of a tensor group have fewer replicas, and are averaged without it.

        Raises: RuntimeError if there is a hook; ValueError if the optimizer reduces gradients to shards.
        """
        self._check_means("register_comm_hook")
        if self._communication_hook is not None:
            raise RuntimeError("register_comm_hook: there is a hook already; a model has one")
        self._communication_hook = CommunicationHook(state, hook)
        if self._reducer is not None:
            self._reducer.set_hook(self._communication_hook, self._runtime.groups.size(Along.DP))

    _register_comm_hook = register_comm_hook  # its name in SMP 1.2

    @property
    def _divides(self) -> bool:
        """Whether gradients are divided by the number of microbatches; if there is a hook, it does so."""
        return self._averages and self._communication_hook is None

    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> contextlib.AbstractContextManager[None]:
        """Train in this block with different numbers of batches per replica; ended replicas contribute zero gradients.

        At the end all replicas copy the parameters of a replica with the most batches; optimizer states may differ.

        Args:
            divide_by_initial_world_size: whether means are over all replicas; else over the replicas that have not
                ended.
            enable: False disables the context.
            throw_on_early_termination: raise an error on all replicas once one has ended.

        Raises: ValueError if ranks must end together: with a pipeline or slices, with shards, with half precision.
        """
        if not enable:
            return contextlib.nullcontext()
        self._check_means("join")
        configuration = self._runtime.configuration
        if self._runtime.mesh.degree(Along.MP) > 1 or configuration.fp16 or configuration.bf16:
            raise ValueError(
                "join: with a pipeline, slices or half precision, replicas step together and no replica can "
                "end before the others: give every replica the same number of batches (drop_last, or a "
                "sampler)"
            )
        assert self._reducer is not None
        return joining(
            self._reducer,
            divides_by_active=not divide_by_initial_world_size,
            throws=throw_on_early_termination,
            take_from=self._make_replicas_equal,
        )

    def reduce_gradients(self) -> None:
        """Average the gradients since the last call over replicas. All ranks call it."""
        self._num_passes, self._has_gradients, self._is_dirty = 0, False, False
        if self.sharded is not None or self._runtime.configuration.shard_optimizer_state:
            return  # the optimizer reduces to the ranks that hold its state
        assert self._reducer is not None
        self._reducer.reduce()
        self._share_buffers(with_gradients=True)

    def settle_gradients(self) -> bool:
        """Average this replica's unreduced gradients, or join the other replicas' average. All ranks call it.

        Returns: whether any replica had gradients, as far as this rank knows.
        """
        if self.has_unreduced_gradients:
            self.reduce_gradients()
            return True
        if self._reducer is None or self._runtime.configuration.shard_optimizer_state:
            return False
        has_met = self._reducer.has_met
        is_any = self._reducer.settle()
        if is_any and not has_met:
            self._share_buffers(with_gradients=True)
        return is_any

    def check_backward(self, *, have_gradients: bool) -> None:
        """Check that there are gradients if the model was called for training.

        Args:
            have_gradients: whether any replica has gradients, since some replicas may skip a backward pass.

        Raises: ParallelError if there are no gradients.
        """
        if self._has_gone.forward and not self._has_gone.backward and not have_gradients:
            raise ParallelError(NO_BACKWARD)

    @property
    def is_joined(self) -> bool:
        """Whether replicas may currently end at different steps; see `join`."""
        return self._reducer is not None and self._reducer.is_joined

    def count_step(self) -> None:
        """Count a step of the optimizer, or one that all ranks have skipped."""
        self.num_steps += 1
        self._has_gone = Passes()
        if self._reducer is not None:
            self._reducer.count_step()
        self._share_buffers(with_gradients=False)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear all gradients, including those of shards and masters."""
        self._num_passes, self._has_gradients, self._is_dirty = 0, False, False
        super().zero_grad(set_to_none)
        if self.sharded is not None:
            self.sharded.clear_gradients()
        if self._reducer is not None:
            self._reducer.forget()
        stepper = getattr(self._runtime.optimizer, "stepper", None)
        if stepper is not None:
            stepper.zero_grad(set_to_none)

    def group_of(self, parameter: torch.nn.Parameter) -> dist.ProcessGroup:
        """Return the ranks that hold equal values of a parameter of this rank."""
        return self._groups_of[id(parameter)]

    @property
    def has_unreduced_gradients(self) -> bool:
        """Whether some gradients are not averaged yet: from passes outside steps or an unfinished accumulation."""
        return self._is_dirty and microbatch() is None

    def _follow_gradients(self) -> None:
        """Hook trained parameters, so that their gradients are tracked and averaged over replicas.

        Called once modules are placed. Replicas are made equal first; a sharded model averages gradients itself.
        """
        if self.sharded is not None:
            trained = [one for one in self.local_parameters() if one.requires_grad]
        else:
            trained = self._make_reducer(are_equal=False)
        self._hook_handles += self._listen(trained)
        self._watched = Watched(self.inner)
        if self._shares_buffers:
            group = self._runtime.groups.process_group(Along.RDP)
            self._buffers_of_replicas = SharedBuffers(self.local_modules(), group)

    def follow_changes(self) -> None:
        """Track the gradients of newly trained parameters that were frozen before. All ranks call it.

        Raises: ParallelError if the gradients cannot be tracked, or for trained parameters that were added to the
            model.
        """
        names = [] if self._watched is None else self._watched.newly_trained()
        if not names:
            return
        if self.sharded is not None:
            refuse_newly_trained(names, "shards of what was not trained then take no gradients")
        if self.is_joined:
            refuse_newly_trained(names, "replicas in join do not learn of new parameters")
        for follower in (*self._hook_handles, self._ordered, self._reducer):
            if follower is not None:
                follower.remove()
        self._hook_handles = self._listen(self._make_reducer(are_equal=True))

    def _listen(self, trained: list[torch.nn.Parameter]) -> list[Any]:
        """Hook trained parameters; return the handles."""
        if self.sharded is not None:
            return [one.register_hook(self._on_gradient) for one in trained]
        num_replicas = self._runtime.groups.size(Along.DP)
        is_slice = [dist.get_world_size(self.group_of(one)) != num_replicas for one in trained]
        return [
            one.register_hook(self._on_gradient_of_slice if sliced else self._on_gradient)
            for one, sliced in zip(trained, is_slice, strict=True)
        ]

    def _make_reducer(self, *, are_equal: bool) -> list[torch.nn.Parameter]:
        """Make the reducer of gradients; return the parameters that are trained.

        Args:
            are_equal: whether replicas have the same values; if not, all get the values of one replica.
        """
        configuration = self._runtime.configuration
        replicated = [
            Replicated(name, parameter, self._runtime.groups.process_group(along))
            for name, parameter, along in self._parameters_and_axes()
        ]
        self._groups_of = {id(one.parameter): one.group for one in replicated}
        self._replicated = replicated
        if not are_equal:
            self._make_replicas_equal(0)
        trained = [one for one in replicated if one.parameter.requires_grad]
        if configuration.deterministic_server and configuration.partitions > 1:
            self._ordered = OrderedSums(one.parameter for one in trained)
        self._reducer = GradientReducer(
            trained,
            bucket_bytes=self._bucket_bytes,
            # Ordered sums are ready at the end of a step only; with sharded optimizer state the optimizer reduces.
            overlaps=self._overlaps and self._ordered is None and not configuration.shard_optimizer_state,
        )
        if self._communication_hook is not None:
            self._reducer.set_hook(self._communication_hook, self._runtime.groups.size(Along.DP))
        return [one.parameter for one in trained]

    @contextlib.contextmanager
    def _gradients_followed(self) -> Iterator[None]:
        """Send complete buckets, or collect gradients in order, during the step in this block; then reduce.

        State after failure: the step is not counted; if buckets were sent already, the next reduction raises.
        """
        self._has_gradients, self._goes, self._is_in_step = False, Passes(), True
        reducer, has_failed = self._reducer, True
        if reducer is not None and self._num_passes == self._passes_per_step - 1:
            reducer.allow_sending()
        try:
            with self._ordered.step() if self._ordered is not None else contextlib.nullcontext():
                yield
            has_failed = False
        finally:
            self._is_in_step = False
            if reducer is not None:
                reducer.forbid_sending(has_failed=has_failed)
        self._has_gone.add(self._goes)
        refuse_untouched(self._goes, have_gradients=self._has_gradients)
        if self._has_gradients:
            self._is_dirty = True
            self._num_passes += 1
            if self._num_passes == self._passes_per_step:
                self.reduce_gradients()

    def _check_means(self, name: str) -> None:
        """Refuse a call that changes the averaging of gradients if the optimizer does the averaging."""
        if self._is_sharded or self._runtime.configuration.shard_optimizer_state:
            raise ValueError(
                f"{name}: with sharded data parallelism or shard_optimizer_state, gradients are reduced only "
                "to the ranks that update the parameters, and not averaged; leave it out"
            )

    def _share_buffers(self, *, with_gradients: bool) -> None:
        """Take the first replica's buffers, once a step; see [Note: buffers].

        Args:
            with_gradients: whether replicas have just reduced gradients; else they have just stepped.
        """
        if self._buffers_of_replicas is None or self.is_joined:
            return
        meets = self.sharded is None and self._reducer is not None and self._reducer.meets
        if with_gradients == (meets and not self._runtime.configuration.shard_optimizer_state):
            self._buffers_of_replicas.share()

    def _make_replicas_equal(self, source: int) -> None:
        """Copy the values of one replica, given by its rank in each group, to all replicas."""
        groups = self._runtime.groups
        with torch.no_grad():
            for one in self._replicated:
                dist.broadcast(one.parameter.data, dist.get_global_rank(one.group, source), group=one.group)
            for buffer in self.local_buffers():
                dist.broadcast(buffer, groups.global_rank(Along.RDP, source), group=groups.process_group(Along.RDP))

    def _on_gradient(self, grad: torch.Tensor) -> torch.Tensor | None:
        self._has_gradients = self._goes.backward = True
        one = microbatch()
        if _is_seeded.get():
            return None
        if one is None:
            if not self._is_in_step:
                self._is_dirty = self._has_gone.backward = True
            return None
        if self._runtime.configuration.partitions > 1 or self._runtime.configuration.fp16:
            raise ParallelError(
                "loss.backward() inside a step, where gradients are scaled or lie on several ranks: call "
                "model.backward(loss)"
            )
        return grad / one.total if self._divides else None

    def _on_gradient_of_slice(self, grad: torch.Tensor) -> torch.Tensor | None:
        """Average over microbatches, too, where a communication hook, which gets no slices, would have to do it."""
        changed = self._on_gradient(grad)
        if self._communication_hook is None or not (self._averages and self._is_in_step):
            return changed
        return grad / self._runtime.configuration.microbatches


@contextlib.contextmanager
def seeded_backward() -> Iterator[None]:
    """Mark a block's backward pass: its initial gradients are already divided by the number of microbatches."""
    token = _is_seeded.set(True)
    try:
        yield
    finally:
        _is_seeded.reset(token)
