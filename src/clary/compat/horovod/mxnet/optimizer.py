"""An optimizer and a trainer that average gradients over all ranks."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import mxnet as mx
from horovod.common.arrays import Scaling
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.util import split_list
from horovod.mxnet import operations
from horovod.mxnet.compression import Compression, Compressor
from horovod.mxnet.operations import call_of

from clary.train.horovod.requests import Reduction


class DistributedOptimizer(mx.optimizer.Optimizer):
    """An optimizer that updates with the average gradient of all ranks.

    Args:
        optimizer: an optimizer of MXNet; it does all work except averaging gradients.
        gradient_predivide_factor: divides gradients before the sum, and multiplies the average.
        num_groups: number of groups into which the gradients are split, each reduced together; 0: each gradient is
            reduced by itself.
        process_set: ranks that take part; other ranks update with their own gradients.
    """

    def __init__(
        self,
        optimizer: mx.optimizer.Optimizer,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        # No super().__init__: it would set learning rate and counts, which `__getattr__` takes from the optimizer.
        self._optimizer = optimizer
        self._scaling = _averaging(gradient_predivide_factor)
        self._num_groups = num_groups
        self._process_set = process_set

    def __getattr__(self, item: str) -> Any:
        """Return the optimizer's attribute of this name."""
        return getattr(self.__dict__["_optimizer"], item)

    def create_state(self, index: int, weight: mx.nd.NDArray) -> Any:
        """Return the optimizer's state. Args: as `mx.optimizer.Optimizer.create_state`."""
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: int, weight: mx.nd.NDArray) -> Any:
        """Return the optimizer's state. Args: as `mx.optimizer.Optimizer.create_state_multi_precision`."""
        return self._optimizer.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Average gradients in place, then update. Args: as `mx.optimizer.Optimizer.update`."""
        self._average(index, grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Average gradients in place, then update. Args: as `mx.optimizer.Optimizer.update_multi_precision`."""
        self._average(index, grad)
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def set_learning_rate(self, lr: float) -> None:
        """Change the optimizer's learning rate."""
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: dict[Any, float]) -> None:
        """Change the optimizer's factors for the learning rate of parameters."""
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: dict[Any, float]) -> None:
        """Change the optimizer's factors for the weight decay of parameters."""
        self._optimizer.set_wd_mult(args_wd_mult)

    def _average(self, index: Any, grad: Any) -> None:
        if not self._process_set.included() or self._process_set.size() == 1:
            return
        is_list = isinstance(index, tuple | list)
        named = list(zip(map(str, index), grad, strict=True)) if is_list else [(str(index), grad)]
        _reduce(named, self._num_groups if is_list else 0, self._process_set, self._scaling)


class DistributedTrainer(mx.gluon.Trainer):
    """A trainer that steps with the average gradient of all ranks.

    Args:
        params: as in `mx.gluon.Trainer`; the same holds for `optimizer` and `optimizer_params`.
        optimizer: a name or an optimizer; if it is a DistributedOptimizer, the optimizer inside it is used, with a
            warning.
        optimizer_params: arguments of the optimizer.
        compression: compressor of gradients for sending.
        gradient_predivide_factor: divides gradients before the sum, and multiplies the average.
        prefix: prefix of names; a program with several trainers passes different prefixes.
        num_groups: number of groups into which the gradients are split, each reduced together; 0: each gradient is
            reduced by itself.
        process_set: ranks that take part; other ranks step with their own gradients.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: dict[str, Any] | None = None,
        compression: type[Compressor] = Compression.none,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if isinstance(optimizer, DistributedOptimizer):
            optimizer = optimizer._optimizer
            warnings.warn(
                "DistributedTrainer averages gradients itself: the optimizer in the DistributedOptimizer is used",
                stacklevel=2,
            )
        if isinstance(params, list | tuple):
            params = sorted(params, key=lambda parameter: parameter.name)
        super().__init__(params, optimizer, optimizer_params=optimizer_params, kvstore=None)
        self._compression = compression
        self._scaling = _averaging(gradient_predivide_factor)
        self._prefix = prefix or ""
        self._num_groups = num_groups
        self._process_set = process_set

    def _allreduce_grads(self) -> None:
        """Average gradients in place; `step` and `allreduce_grads` call it."""
        if not self._process_set.included() or self._process_set.size() == 1:
            return
        sent = []
        for index, parameter in enumerate(self._params):
            if parameter.grad_req != "null":
                gradient = parameter.list_grad()[0]
                sent.append((f"{self._prefix}{index}", gradient, *self._compression.compress(gradient)))
        _reduce([(name, packed) for name, _, packed, _ in sent], self._num_groups, self._process_set, self._scaling)
        for _, gradient, packed, kept in sent:
            if packed is not gradient:
                gradient[:] = self._compression.decompress(packed, kept)


def _averaging(gradient_predivide_factor: float) -> Scaling:
    return Scaling(Reduction.AVERAGE, 1.0 / gradient_predivide_factor, gradient_predivide_factor)


def _reduce(
    named: Sequence[tuple[str, mx.nd.NDArray]], num_groups: int, process_set: ProcessSet, scaling: Scaling
) -> None:
    """Average arrays in place, all submitted at once, so that small arrays are sent together."""
    if num_groups <= 0:
        calls = [([tensor], [tensor], call_of(name, process_set)) for name, tensor in named]
        operations.reduce_all(calls, scaling)
        return
    calls = []
    for part in split_list(named, num_groups):
        by_type: dict[Any, list[tuple[str, mx.nd.NDArray]]] = {}
        for name, tensor in part:
            by_type.setdefault(tensor.dtype, []).append((name, tensor))
        for entries in by_type.values():
            tensors = [tensor for _, tensor in entries]
            name = f"{entries[0][0]}:{entries[-1][0]}"
            calls.append((tensors, tensors, call_of(name, process_set, is_group=True)))
    operations.reduce_all(calls, scaling)
