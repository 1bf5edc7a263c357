"""Parameters without memory until their owning rank is known.

Where: scripts make a model under `delay_param_initialization`; once the engine has placed the modules, it calls
`materialize` for the modules on this rank. `recording` explains how initialisation is recorded, and why values are
bitwise equal to those without delay.
Source: SageMaker developer guide, "Delayed Parameter Initialization"; sagemaker-python-sdk
`doc/api/training/smp_versions/latest/smd_model_parallel_pytorch.rst`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from clary.train.parallel.memory.recording import DelayedInitializationError, Recording
from clary.train.parallel.memory.recording_modes import PretendingMode, RecordingMode


@dataclass(eq=False)
class _Model:
    """A model made in one context: its recording, and its parameters without memory, with their versions."""

    recording: Recording
    waiting: dict[int, tuple[weakref.ref[nn.Parameter], int]] = field(default_factory=dict)  # keys: ids of parameters

    def wait_for(self, parameter: nn.Parameter) -> None:
        """Add a parameter without memory, whose version must not change until it gets memory."""
        key = id(parameter)
        self.waiting[key] = weakref.ref(parameter, lambda _: self._let_go(key)), parameter._version

    def _let_go(self, key: int) -> None:
        """Remove a freed parameter, and its model if no waiting parameter is left."""
        self.waiting.pop(key, None)
        if not self.waiting:
            _keep_those_that_wait()


class _Own(threading.local):
    """The recording of this thread."""

    model: _Model | None = None
    is_enabled = False


_MOST_USES = 2  # expected references to a leaf's TensorImpl: its object and its gradient accumulator

_own = _Own()
_models: list[_Model] = []  # with waiting parameters; finalizers may change it at any time, so loops use a copy
_models_lock = threading.RLock()  # reentrant: a finalizer may interrupt the thread that holds it


def _keep_those_that_wait(*more: _Model) -> None:
    with _models_lock:
        _models[:] = [model for model in (*_models, *more) if model.waiting]


@contextmanager
def delay_param_initialization(enabled: bool = True) -> Iterator[None]:
    """Make parameters in this block without memory, and record their initialisation.

    In nested contexts, the innermost one decides whether parameters are delayed. Initialisation must run in the block.
    Parameters from outside values (`torch.from_numpy`) and buffers are made at once, except buffers that are computed
    from delayed parameters.

    Raises: DelayedInitializationError in the block, if an operation of a constructor cannot be delayed.
    """
    before = _own.is_enabled
    _own.is_enabled = enabled
    try:
        if _own.model is not None or not enabled:
            yield
        else:
            with _recording_parameters():
                yield
    finally:
        _own.is_enabled = before


def is_delayed(tensor: torch.Tensor) -> bool:
    """Return whether a parameter or buffer was made in a context that has ended, and has no memory yet.

    Args:
        tensor: of any shape.
    """
    return _model_of(tensor) is not None


def materialize(
    module: nn.Module,
    device: torch.device | str | None = None,
    *,
    only: Callable[[nn.Module], bool] | None = None,
) -> list[str]:
    """Give delayed parameters memory and values; they stay the same objects, so existing optimizers stay valid.

    A parameter that several modules share is made if any of them is chosen. Peak memory is the memory of all made
    tensors plus that of the initialisation of one parameter.

    Args:
        device: target device; None is the device that each parameter would have without delayed initialisation.
        only: returns whether to make a module's own parameters and buffers; its children are decided separately.

    Returns: names of the parameters and buffers that were made.
    Raises: DelayedInitializationError: a parameter without memory was not made in the context, was changed after it, or
        is part of a graph of autograd. Tensors made before the error stay.
    """
    made = []
    storages: dict[int, torch.UntypedStorage] = {}
    for prefix, part in module.named_modules():
        if only is not None and not only(part):
            continue
        for name, tensor in [*part._parameters.items(), *part._buffers.items()]:
            if tensor is None or not tensor.is_meta:
                continue
            full_name = f"{prefix}.{name}" if prefix else name
            value = _value(full_name, tensor, device, storages)
            if isinstance(tensor, nn.Parameter):
                _fill(full_name, tensor, value)
            else:
                part._buffers[name] = value
            made.append(full_name)
    _keep_those_that_wait()
    return made


@contextmanager
def _recording_parameters() -> Iterator[None]:
    model = _Model(Recording())
    with _patch:
        _own.model = model
        try:
            with PretendingMode(model.recording), RecordingMode(model.recording):
                yield
        finally:
            _own.model = None
    for reference, _ in list(model.waiting.values()):
        parameter = reference()
        if parameter is not None:
            model.wait_for(parameter)
    _keep_those_that_wait(model)


class _Patch:
    """Patches `nn.Parameter` to make parameters without memory while any thread records.

    Parameters lack memory from the start, since a constructor may initialise a parameter before or after registration.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_inside = 0
        self._original: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._num_inside == 0:
                original = self._original = nn.Parameter.__new__
                # `__new__` must be replaced by a function, not by a bound method.
                nn.Parameter.__new__ = lambda cls, data=None, requires_grad=True: _make(
                    original, cls, data, requires_grad
                )
            self._num_inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._num_inside -= 1
            if self._num_inside == 0:
                nn.Parameter.__new__ = self._original


_patch = _Patch()


def _make(original: Any, cls: Any, data: Any, requires_grad: bool) -> Any:
    model = _own.model
    if model is None or not _own.is_enabled or data is None or cls is not nn.Parameter:
        return original(cls, data, requires_grad)
    parameter = original(cls, model.recording.delay(data), requires_grad)
    if model.recording.knows(parameter):
        model.wait_for(parameter)
    return parameter


def _model_of(tensor: torch.Tensor) -> _Model | None:
    return next((model for model in list(_models) if model.recording.knows(tensor)), None)


def _value(
    name: str, tensor: torch.Tensor, device: torch.device | str | None, storages: dict[int, torch.UntypedStorage]
) -> torch.Tensor:
    """Compute a delayed tensor on its device; tensors with a shared storage keep sharing it."""
    model = _model_of(tensor)
    if model is None:
        raise DelayedInitializationError(
            f"delayed initialisation: {name} has no memory, and nothing is known of how it is "
            "initialised. It was made on the meta device, or it was converted to another type, moved to "
            "another device or copied after the context delay_param_initialization ended: do that inside "
            "the context"
        )
    _, version = model.waiting.get(id(tensor), (None, tensor._version))
    if tensor._version != version:
        raise DelayedInitializationError(
            f"delayed initialisation: {name} was changed in place while it had no memory, after the "
            "context delay_param_initialization ended; the change is lost. Make the change inside the "
            "context, or after the first step"
        )
    key = tensor.untyped_storage()._cdata
    if key not in storages:
        storage = model.recording.replay(tensor).untyped_storage()
        if device is not None and storage.device != torch.device(device):
            flat = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            storage = flat.to(device).untyped_storage()
        storages[key] = storage
    value = torch.empty(0, dtype=tensor.dtype, device=storages[key].device)
    return value.set_(storages[key], tensor.storage_offset(), tensor.shape, tensor.stride())


def _fill(name: str, parameter: nn.Parameter, value: torch.Tensor) -> None:
    """Put memory and values into a parameter; it stays the same object."""
    real = torch.Tensor._make_subclass(type(parameter), value, parameter.requires_grad)
    model = _model_of(parameter)
    if parameter._use_count() > _MOST_USES:
        raise DelayedInitializationError(
            f"delayed initialisation: {name} is part of a graph of autograd; it must have its values before the model "
            "is used"
        )
    # Like `torch.utils.swap_tensors`, but allows weak references, as RNN weights have them: they refer to the Python
    # object, which stays.
    torch._C._swap_tensor_impl(parameter, real)
    if model is not None:
        model.waiting.pop(id(parameter), None)
