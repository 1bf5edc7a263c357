"""A sharded model: gathers parameters before a module runs, frees them afterwards, reduces gradients as they arrive.

Where: `shard_model` makes it once; `ShardedOptimizer` ends its accumulation. Hooks on the module gather, free and
reduce.

[Note: holders of a buffer] A buffer is whole while it has a holder. A call of a unit holds the buffer during the
forward pass, and again from the first gradient of one of the call's outputs until all gradients of the buffer have
arrived; if the buffer's parameters are not trained, until the gradients of the call's inputs have arrived. The end of
the backward pass frees the remaining buffers. A buffer may be reduced at any time: later gradients, such as from a
second part of a recomputed graph, are reduced and added separately.

[Note: same order everywhere] Ranks gather and reduce in the order in which their modules run, so all replicas must call
the same units and train the same parameters in a unit. Otherwise ranks wait until the group's timeout.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook

from clary.train.parallel.sharded.collectives import start_all_reduce
from clary.train.parallel.sharded.flat import Flat, Spares
from clary.train.parallel.sharded.foresight import Foresight
from clary.train.parallel.sharded.groups import ShardingGroups
from clary.train.parallel.sharded.reductions import Reductions, told
from clary.train.parallel.sharded.settings import ShardingSettings
from clary.train.parallel.sharded.tensors import tensors_in


class ShardedModel:
    """The shards of one model on one rank.

    Args:
        module: the module that has the parameters.
        needs: the sharded buffers that each unit uses, without buffers that stay whole.
    """

    def __init__(
        self,
        module: nn.Module,
        flats: list[Flat],
        needs: dict[nn.Module, list[Flat]],
        groups: ShardingGroups,
        settings: ShardingSettings,
    ) -> None:
        self.module = module
        self.flats = flats
        self.groups = groups
        self.settings = settings
        self.gradient_square: float = 0.0  # squared norm of all gradients; set at the end of an accumulation
        self._needs = needs
        self._places = {parameter: (flat, place) for flat in flats for place, parameter in enumerate(flat.parameters)}
        self._spares = Spares()
        for flat in flats:
            flat.spares = self._spares
        self._reductions = Reductions(settings.reduce_bucket_size, self._on_reduced)
        self._foresight = Foresight(settings.max_live_parameters, settings.num_prefetched)
        self._is_last_backward = False
        self._backward_task: int | None = None
        self._handles = [handle for unit, flats in needs.items() for handle in self._watch(unit, flats)]
        for flat in flats:
            for place, parameter in enumerate(flat.parameters):
                if flat.is_trained:
                    self._handles.append(parameter.register_post_accumulate_grad_hook(self._gradient_hook(flat, place)))

    def slice_of(self, parameter: nn.Parameter) -> nn.Parameter:
        """Return the flat part of a parameter that this rank keeps, for the optimizer; it may be empty.

        Raises: KeyError if the model has no such parameter.
        """
        flat, place = self._places[parameter]
        return flat.slices[place]

    def owns(self, parameter: Any) -> bool:
        """Return whether `parameter` belongs to this model."""
        return isinstance(parameter, nn.Parameter) and parameter in self._places

    def is_cut(self, parameter: nn.Parameter) -> bool:
        """Return whether a parameter is sharded, so that it is whole only while its module runs."""
        return self._places[parameter][0].groups is not None if parameter in self._places else False

    @property
    def num_live_parameters(self) -> int:
        """Number of elements of parameters that are gathered or being gathered."""
        return sum(flat.numel for flat in self.flats if flat.is_claimed)

    def expect_last_backward(self) -> None:
        """Announce the last backward pass before the step, so that replicas synchronise during it.

        The call is optional: without it the second hop starts in `end_accumulation`. Gradients of further passes are
        still correct, but cost another second hop.
        """
        self._is_last_backward = True

    def end_accumulation(self, norm_weight: Callable[[str], float] | None = None) -> None:
        """Average gradients over all replicas and set them on the optimizer's slices. All replicas call it.

        Args:
            norm_weight: function from a parameter's name to the weight of its squared gradient norm in
                `gradient_square`; None is 1 for all.

        Raises: RuntimeError if a collective failed; gradients are lost then.
        """
        for flat in self.flats:
            if flat.master_gradient_S is not None:
                self._synchronise(flat)
        for flat in self.flats:
            with told(flat, "all-reduce of gradients"):
                flat.end_synchronisation()
        self._is_last_backward = False
        self._show_gradients(norm_weight)

    def scale_gradients(self, factor: float) -> None:
        """Multiply all gradients by `factor`, after the end of an accumulation."""
        for flat in self.flats:
            if flat.master_gradient_S is not None:
                flat.master_gradient_S.mul_(factor)

    def clear_gradients(self) -> None:
        """Drop all gradients."""
        self._is_last_backward = False
        for flat in self.flats:
            flat.clear_gradients()

    def refresh(self) -> None:
        """Copy the masters into parameters that stay whole, after a step."""
        for flat in self.flats:
            flat.refresh()

    @contextlib.contextmanager
    def gathered(self) -> Iterator[None]:
        """Gather all parameters within the block, for reading. All replicas enter it."""
        holder = object()
        sharded = [flat for flat in self.flats if flat.groups is not None]
        try:
            for flat in sharded:
                self._hold(flat, holder)
            yield
        finally:
            for flat in sharded:
                self._let_go(flat, holder)

    def _watch(self, unit: nn.Module, flats: list[Flat]) -> Iterator[Any]:
        calls: list[_Call] = []

        def before(_: nn.Module, arguments: Any, keywords: Any) -> None:
            call = _Call(flats)
            calls.append(call)
            if unit is self.module and _graph_task() is None and self._backward_task is not None:
                self._abandon_backward()
            for flat in flats:
                self._hold(flat, call, follows=_graph_task() is None)
            if torch.is_grad_enabled():
                self._watch_inputs(call, (arguments, keywords))

        def after(_: nn.Module, arguments: Any, keywords: Any, results: Any) -> None:
            call = calls.pop()
            keeps = _graph_task() is not None and self.num_live_parameters <= self.settings.max_live_parameters
            for flat in flats:
                if not keeps:
                    self._let_go(flat, call)
            if torch.is_grad_enabled():
                for tensor in tensors_in(results):
                    if tensor.requires_grad and tensor.grad_fn is not None:
                        tensor.register_hook(lambda _: self._begin_backward(call))
            if unit is self.module and _graph_task() is None:
                self._end_pass()

        yield unit.register_forward_pre_hook(before, with_kwargs=True, prepend=True)
        # Called even after a failed forward pass, whose parameters must be freed.
        yield unit.register_forward_hook(after, with_kwargs=True, always_call=True)

    def _watch_inputs(self, call: _Call, inputs: Any) -> None:
        """Free buffers of untrained parameters once a call's inputs have their gradients."""
        untrained = [flat for flat in call.flats if not flat.is_trained]
        watched = [tensor for tensor in tensors_in(inputs) if tensor.requires_grad]
        if untrained and watched:

            def let_go(_: Any) -> None:
                for flat in untrained:
                    self._let_go(flat, call)

            register_multi_grad_hook(watched, let_go)

    def _begin_backward(self, call: _Call) -> None:
        self._join_backward()
        for flat in call.flats:
            self._hold(flat, call, follows=True)

    def _join_backward(self) -> None:
        """Record the running backward pass, and register a callback at its end."""
        if self._backward_task is None:
            self._backward_task = _graph_task()
            self._foresight.begin_pass()
            torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)

    def _hold(self, flat: Flat, holder: object, *, follows: bool = False) -> None:
        """Gather a buffer; if `follows`, also prefetch the buffers that followed it in the previous pass."""
        flat.holders.add(holder)
        with told(flat, "all-gather of parameters"):
            flat.start_gather()
        if follows:
            for ahead in self._foresight.after(
                flat, backward=self._backward_task is not None, live=self.num_live_parameters
            ):
                with told(ahead, "all-gather of parameters ahead of their use"):
                    ahead.start_gather()
        with told(flat, "all-gather of parameters"):
            flat.finish_gather()

    def _let_go(self, flat: Flat, holder: object) -> None:
        flat.holders.discard(holder)
        if not flat.holders:
            flat.free()

    def _gradient_hook(self, flat: Flat, place: int) -> Callable[[torch.Tensor], None]:
        def take(_: torch.Tensor) -> None:
            self._join_backward()
            flat.accept(place)
            if not flat.is_complete:
                return
            # All uses of a parameter in one graph precede its gradient. Inner graphs of reentrant recomputation cover
            # their own uses alone.
            if len(flat.holders) <= 1 or _graph_task() == self._backward_task:
                flat.holders.clear()
                flat.free()  # freed before the reduction, which needs as much memory
            self._reductions.start(flat)

        return take

    def _end_backward(self) -> None:
        """Reduce the remaining buffers, which contain unused parameters."""
        for flat in self.flats:
            if flat.arrived:
                self._reductions.start(flat)
        self._reductions.finish()
        self._spares.clear()
        self._backward_task = None
        for flat in self.flats:
            flat.holders.clear()
        self._end_pass()

    def _abandon_backward(self) -> None:
        """Abandon a failed backward pass and drop its unreduced gradients."""
        self._backward_task = None
        self._reductions.forget()
        for flat in self.flats:
            flat.holders.clear()
            flat.forget_arrived()

    def _end_pass(self) -> None:
        """Free buffers that were prefetched but not used."""
        self._foresight.begin_pass()
        for flat in self.flats:
            if not flat.holders:
                flat.finish_gather()
                flat.free()

    def _on_reduced(self, flat: Flat) -> None:
        if self._is_last_backward and not flat.arrived:
            self._synchronise(flat)

    def _synchronise(self, flat: Flat) -> None:
        """Start the second hop: the mean over the ranks that keep the same shard."""
        if flat.finish_synchronisation is not None or flat.master_gradient_S is None:
            return
        group = self.groups.replication if flat.groups is not None else self.groups.replicas
        flat.master_gradient_S.mul_(1 / group.size())
        with told(flat, "all-reduce of gradients"):
            flat.finish_synchronisation = start_all_reduce(flat.master_gradient_S, group)

    def _show_gradients(self, norm_weight: Callable[[str], float] | None) -> None:
        """Agree with all replicas on the used parameters and the norm, in one message."""
        trained = [flat for flat in self.flats if flat.is_trained]
        square = 0.0
        used: list[float] = []
        for flat in trained:
            copies = self.groups.num_groups if flat.groups is not None else self.groups.num_replicas
            square += flat.gradient_square(norm_weight) / copies
            used += [float(place in flat.used) for place in range(len(flat.slices))]
        message = torch.tensor([square, *used], dtype=torch.float64, device=self.flats[0].master_S.device)
        start_all_reduce(message, self.groups.replicas)()
        self.gradient_square, *counts = message.tolist()
        for flat in trained:
            flat.show_gradients([count > 0 for count in counts[: len(flat.slices)]])
            del counts[: len(flat.slices)]


class _Call:
    """One call of a unit, which holds the unit's buffers."""

    def __init__(self, flats: list[Flat]) -> None:
        self.flats = flats


def _graph_task() -> int | None:
    """Return the id of the backward pass in which the calling code runs, as in recomputation, or None."""
    task: int = torch._C._current_graph_task_id()
    return task if task >= 0 else None
