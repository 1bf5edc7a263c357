"""DistributedOptimizer: reduces gradients over all ranks while the backward pass runs, then steps.

The object is an instance of the class of the optimizer that it was made from, with the same parameter groups and state.

[Note: schedules made before] A learning rate schedule replaces `step` in the optimizer that it gets, by a function that
notes the step and calls that optimizer's own `step`. A DistributedOptimizer made afterwards must not get this function,
which reduces nothing. So it takes no attribute that would hide a method of its own, and notes its steps in the earlier
optimizer, in which the schedule looks for them.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from horovod.common.basics import size
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.util import split_list
from horovod.torch import asynchronous as ops
from horovod.torch.compression import Compression, Compressor
from horovod.torch.functions import broadcast_object

_STEP_WITHOUT_SKIP = (
    "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize(): gradients are "
    "reduced a second time. Call step inside of `with optimizer.skip_synchronize():`"
)
_CHANGED_EARLY = (
    "the gradient of {name} was changed, as by clipping, after loss.backward() had begun to reduce it: the change is "
    "lost, or ranks differ. Call optimizer.synchronize() first, and step inside of `with optimizer.skip_synchronize():`"
)


class _Distributed:
    """Mixin for an optimizer's class that reduces gradients before a step.

    A hook on each parameter counts backward passes. After the last pass of a step, the hook begins to reduce the
    gradient, or the gradients of the parameter's group once all of them are ready.
    """

    def _prepare(
        self,
        named_parameters: Iterable[Any] | None,
        compression: type[Compressor],
        backward_passes_per_step: int,
        op: int,
        predivide_factor: float,
        groups: int | Sequence[Sequence[torch.Tensor]] | None,
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> None:
        self._compression = compression
        self.backward_passes_per_step = backward_passes_per_step
        self.op = op
        self.gradient_predivide_factor = predivide_factor
        self.sparse_as_dense = sparse_as_dense
        self.process_set = process_set
        self._parameters = _parameters_of(self)
        self._parameter_names = _names_of(self._parameters, named_parameters)
        self._passes_left = dict.fromkeys(self._parameters, backward_passes_per_step)
        self._handles: dict[Any, Any] = {}
        self._synchronized = False
        self._should_synchronize = True
        self._requires_update = [p for p in self._parameters if p.requires_grad]
        self._sent: dict[torch.Tensor, tuple[torch.Tensor, int]] = {}  # gradient, and how often it had been changed
        self._has_warned = False
        self._group_of: dict[torch.Tensor, tuple[torch.Tensor, ...]] = {}
        self._arrived: dict[tuple[torch.Tensor, ...], set[torch.Tensor]] = {}
        self._hooks = []
        if process_set.included() is not False:  # other ranks reduce no gradients
            if groups is not None:
                self._form_groups(groups)
            hook = self._make_hook()
            self._hooks = [p.register_post_accumulate_grad_hook(hook) for p in self._requires_update]

    def _follow(self) -> None:
        """Reduce the gradients of parameters, too, that were unfrozen or added since; all ranks must do so alike."""
        known = set(self._requires_update)
        later = [p for p in _parameters_of(self) if p.requires_grad and p not in known]
        if not later or self.process_set.included() is False:
            return
        self._parameters = _parameters_of(self)
        self._requires_update += later
        for p in later:
            self._passes_left[p] = self.backward_passes_per_step
            self._hooks.append(p.register_post_accumulate_grad_hook(self._make_hook()))

    def _form_groups(self, groups: int | Sequence[Sequence[torch.Tensor]]) -> None:
        """Put parameters into groups, equal on all ranks of the set: in the order of its first rank's parameters."""
        names = [self._parameter_names[p] for p in self._requires_update]
        first_rank = min(self.process_set.ranks or [0])
        order = broadcast_object(names, first_rank, process_set=self.process_set)
        by_name = {self._parameter_names[p]: p for p in self._requires_update}
        parameters = [by_name[name] for name in order]
        if isinstance(groups, int):
            found = [tuple(group) for group in split_list(parameters, groups) if group] if groups > 0 else []
        else:
            known = set(parameters)
            found = [tuple(p for p in group if p in known) for group in groups]
            grouped = {p for group in found for p in group}
            found += [(p,) for p in parameters if p not in grouped]
        for group in found:
            self._arrived[group] = set()
            for p in group:
                self._group_of[p] = group

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change the number of backward passes per step."""
        self.backward_passes_per_step = passes
        self._passes_left = dict.fromkeys(self._parameters, passes)

    def _make_hook(self) -> Callable[[torch.Tensor], None]:
        def hook(p: torch.Tensor) -> None:
            if self._passes_left[p] <= 0:
                raise AssertionError(
                    "Gradients were computed more than backward_passes_per_step times before call to step(). Increase "
                    "backward_passes_per_step to accumulate gradients locally."
                )
            self._passes_left[p] -= 1
            if self._passes_left[p] == 0:
                self._arrive(p)

        return hook

    def _arrive(self, p: torch.Tensor) -> None:
        group = self._group_of.get(p)
        if group is None:
            self._handles[p] = self._begin(p)
            return
        self._arrived[group].add(p)
        if len(self._arrived[group]) == len(group):
            self._handles[group] = self._begin_group(group)

    def _begin(self, p: torch.Tensor) -> tuple[Any, Any, torch.Tensor]:
        """Begin to reduce one gradient, or zeros if this rank has computed no gradient: another rank may have one."""
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        gradient = p.grad
        if gradient.is_sparse:
            if not self.sparse_as_dense:
                return (
                    ops.sparse_allreduce_async(gradient, _name_of(self, p), self.op, self.process_set),
                    None,
                    gradient,
                )
            gradient = gradient.to_dense()
        packed, kept = self._compression.compress(gradient)
        packed = packed.contiguous()
        self._note_sent(p)
        before, after = self._factors()
        handle = ops.allreduce_async_(
            packed.data,  # counts changes by itself
            name=_name_of(self, p),
            op=self.op,
            prescale_factor=before,
            postscale_factor=after,
            process_set=self.process_set,
        )
        return handle, kept, packed

    def _begin_group(self, group: tuple[torch.Tensor, ...]) -> tuple[Any, Any, torch.Tensor]:
        for p in group:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            elif p.grad.is_sparse:
                p.grad = p.grad.to_dense()
            self._note_sent(p)
        pairs = [self._compression.compress(p.grad) for p in group if p.grad is not None]
        before, after = self._factors()
        handle = ops.grouped_allreduce_async_(
            [packed.contiguous().data for packed, _ in pairs],
            name=self._parameter_names[group[0]],
            op=self.op,
            prescale_factor=before,
            postscale_factor=after,
            process_set=self.process_set,
        )
        return handle, [kept for _, kept in pairs], group[0]

    def _note_sent(self, p: torch.Tensor) -> None:
        if p.grad is not None and not p.grad.is_sparse:
            self._sent[p] = p.grad, p.grad._version

    def _warn_of_changes(self) -> None:
        """Warn, once, if the program has changed gradients that are being reduced."""
        for p, (gradient, version) in self._sent.items():
            if not self._has_warned and (p.grad is not gradient or gradient._version != version):
                self._has_warned = True
                warnings.warn(_CHANGED_EARLY.format(name=_name_of(self, p)), stacklevel=4)
        self._sent.clear()

    def _factors(self) -> tuple[float, float]:
        if self.op != ops.Average:
            return 1.0, 1.0
        return 1.0 / self.gradient_predivide_factor, self.gradient_predivide_factor

    def synchronize(self) -> None:
        """Wait until all gradients are reduced; begin the reductions that no backward pass has begun.

        Raises: HorovodInternalError.
        """
        if self.process_set.included() is False:
            self._synchronized = True
            return
        self._warn_of_changes()
        self._follow()
        frozen = [p for p in self._requires_update if not p.requires_grad and p.grad is None]
        for p in self._requires_update:
            group = self._group_of.get(p, (p,))
            key = group if p in self._group_of else p
            if key in self._handles or not any(member.requires_grad for member in group):
                continue
            self._handles[key] = self._begin_group(group) if p in self._group_of else self._begin(p)
        self._sent.clear()
        handles, self._handles = self._handles, {}
        for arrived in self._arrived.values():
            arrived.clear()
        self._passes_left = dict.fromkeys(self._parameters, self.backward_passes_per_step)
        for key, (handle, kept, packed) in handles.items():
            if isinstance(key, tuple):
                for p, output, one_kept in zip(key, ops.synchronize(handle), kept, strict=True):
                    self._take(p, self._compression.decompress(output, one_kept))
            elif callable(handle):
                self._take(key, handle())
            else:
                ops.synchronize(handle)
                self._take(key, self._compression.decompress(packed, kept))
        for p in frozen:  # zeros that were sent with a group: a step would decay the parameter
            p.grad = None
        self._synchronized = True

    def _take(self, p: torch.Tensor, reduced: torch.Tensor) -> None:
        """Make a reduced tensor the gradient of a parameter."""
        gradient = p.grad
        if gradient is None or reduced is gradient:
            return
        if gradient.is_sparse:
            p.grad = reduced if reduced.is_sparse else reduced.to_sparse()
        elif reduced.data_ptr() != gradient.data_ptr():
            with torch.no_grad():
                gradient.copy_(reduced)

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Make `step` reduce no gradients within a block, for programs that change gradients after `synchronize`."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Any = None) -> Any:
        """Wait for the gradients, then step.

        Args:
            closure: closure of the optimizer's own `step`. The gradients that it computes are reduced each time that
                it returns. For LBFGS, which decides by the loss how often it calls the closure, losses are reduced too.
        """
        if self._should_synchronize:
            if self._synchronized:
                warnings.warn(_STEP_WITHOUT_SKIP, stacklevel=2)
            has_gradients = closure is None or bool(self._handles)
            if has_gradients:
                self.synchronize()
            if closure is not None:
                closure = self._reducing(closure, has_gradients=has_gradients)
        self._synchronized = False
        loss = super().step(closure)  # type: ignore[misc]
        _note_step(self)
        return loss

    def _reducing(self, closure: Callable[[], Any], *, has_gradients: bool) -> Callable[[], Any]:
        """Return a closure that reduces the gradients that `closure` computes.

        Args:
            closure: computes gradients, or returns the loss whose gradients were reduced before.
            has_gradients: whether gradients were reduced before.
        """
        is_first = not has_gradients

        def call() -> Any:
            nonlocal is_first
            loss = closure()
            if is_first or self._handles:
                self.synchronize()
            is_first = False
            return self._reduced_loss(loss) if isinstance(self, torch.optim.LBFGS) else loss

        return call

    def _reduced_loss(self, loss: Any) -> torch.Tensor:
        own = torch.as_tensor(loss).detach()
        if self.process_set.included() is False:
            return own
        op = ops.Sum if self.op == ops.Sum else ops.Average
        reduced: torch.Tensor = ops.synchronize(
            ops.allreduce_async(own, name="allreduce.loss.of.closure", op=op, process_set=self.process_set)
        )
        return reduced

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Clear the gradients.

        Raises: AssertionError while a reduction is in progress, whose result would overwrite the zeros.
        """
        if self._handles:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                "optimizer.synchronize(): reductions are under way"
            )
        super().zero_grad(*args, **kwargs)  # type: ignore[misc]
        self._follow()


class _DistributedDelta:
    """Mixin for an optimizer's class for Adasum: each rank steps by itself, and the changes are combined."""

    def _prepare(
        self, named_parameters: Iterable[Any] | None, compression: type[Compressor], backward_passes_per_step: int
    ) -> None:
        self._compression = compression
        self.backward_passes_per_step = backward_passes_per_step
        self._parameters = _parameters_of(self)
        self._parameter_names = _names_of(self._parameters, named_parameters)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change the number of backward passes per step; gradients add up until `step`."""
        self.backward_passes_per_step = passes

    def synchronize(self) -> None:
        """Do nothing: `step` combines the changes of all ranks."""

    def skip_synchronize(self) -> None:
        """Refuse the call. Raises: AssertionError, because `synchronize` does nothing."""
        raise AssertionError("Skipping synchronization is not supported when using Adasum optimizer.")

    def step(self, closure: Any = None) -> Any:
        """Step, then replace this rank's change of each parameter by the Adasum of all ranks' changes.

        Args:
            closure: closure of the optimizer's own `step`.
        """
        trained = [p for p in _parameters_of(self) if p.requires_grad]
        before = [p.detach().clone() for p in trained]
        loss = super().step(closure)  # type: ignore[misc]
        waiting = []
        for p, start in zip(trained, before, strict=True):
            packed, kept = self._compression.compress((p.detach() - start).contiguous())
            waiting.append((ops.allreduce_async_(packed, name=_name_of(self, p), op=ops.Adasum), packed, kept))
        for p, start, (handle, packed, kept) in zip(trained, before, waiting, strict=True):
            ops.synchronize(handle)
            with torch.no_grad():
                p.copy_(start + self._compression.decompress(packed, kept))
        _note_step(self)
        return loss


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[Any] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = ops.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return an optimizer of the same class whose `step` uses the gradients of all ranks.

    Args:
        optimizer: an optimizer of torch; it shares parameters and state with the result, and must not be used
            afterwards.
        named_parameters: names of all parameters, equal on all ranks; None numbers the parameters.
        compression: compressor of gradients for sending.
        backward_passes_per_step: backward passes whose gradients add up before one reduction.
        op: Average, Sum, or Adasum.
        gradient_predivide_factor: divides gradients before the sum, and multiplies the average; only for Average.
        num_groups: argument of Horovod before 0.21; use `groups`.
        groups: number of groups, or lists of parameters, whose gradients are sent together.
        sparse_as_dense: reduce sparse gradients as dense gradients.
        process_set: ranks that take part.

    Raises: ValueError for names that are missing or given twice, and for arguments that exclude each other;
        NotImplementedError for Adasum in a process set.
    """
    if gradient_predivide_factor != 1.0 and op != ops.Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    if num_groups:
        warnings.warn("num_groups is of before Horovod 0.21: use groups", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    if groups is not None and not isinstance(groups, int | list):
        raise ValueError("groups should be a non-negative integer or a list of list of torch.Tensor.")
    if isinstance(groups, int) and groups < 0:
        raise ValueError("groups should be a non-negative integer or a list of list of torch.Tensor.")
    is_delta = op == ops.Adasum and size() > 1
    if is_delta and process_set is not global_process_set:
        raise NotImplementedError("Adasum does not support non-global process sets yet.")
    kind = type(optimizer)
    added = _DistributedDelta if is_delta else _Distributed
    found: Any = object.__new__(type(kind.__name__, (added, kind), {"__module__": __name__}))
    # See [Note: schedules made before].
    found.__dict__.update((name, value) for name, value in vars(optimizer).items() if not hasattr(added, name))
    found._made_from = optimizer
    if is_delta:
        found._prepare(named_parameters, compression, backward_passes_per_step)
    else:
        found._prepare(
            named_parameters,
            compression,
            backward_passes_per_step,
            op,
            gradient_predivide_factor,
            groups or None,
            sparse_as_dense,
            process_set,
        )
    return found


def _parameters_of(optimizer: Any) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _name_of(optimizer: Any, p: torch.Tensor) -> str:
    """Return the name of a parameter; one that was added without a name gets one by its place in the optimizer."""
    names: dict[torch.Tensor, str] = optimizer._parameter_names
    if p not in names:
        places = [one is p for one in _parameters_of(optimizer)]
        names[p] = f"allreduce.added.{places.index(True)}"
    return names[p]


def _note_step(optimizer: Any) -> None:
    """Note a step as a schedule's function would. See [Note: schedules made before]."""
    earlier = optimizer._made_from
    earlier._opt_called = True  # torch 2.4 and later
    earlier._step_count = getattr(earlier, "_step_count", 0) + 1  # earlier releases of torch


def _names_of(parameters: Sequence[torch.Tensor], named: Iterable[Any] | None) -> dict[torch.Tensor, str]:
    """Return the name of each parameter. Raises: ValueError for names missing or given twice."""
    if named is None:
        return {p: f"allreduce.noname.{index}" for index, p in enumerate(parameters)}
    pairs = list(named)
    if any(not isinstance(pair, tuple) for pair in pairs):
        raise ValueError("named_parameters should be pairs (name, parameter), as of model.named_parameters()")
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"names in named_parameters must be unique; found duplicates: {', '.join(twice)}")
    found = {p: name for name, p in pairs}
    missing = [index for index, p in enumerate(parameters) if p not in found]
    if missing:
        raise ValueError(f"named_parameters has no names for the parameters with the indices {missing}")
    return found
