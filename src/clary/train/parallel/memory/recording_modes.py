"""The modes through which torch reports every operation to a recording.

Where: `delayed` enters both modes while a model is made; see `recording` for the contents of a recording.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from clary.train.parallel.memory.recording import (
    DelayedInitializationError,
    Recording,
    generators_of,
    is_plain,
    tensors_of,
    written_tensors,
)


class RecordingMode(TorchDispatchMode):
    """Records every operation; see [Note: recorded operations]."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self.recording = recording
        self._scratch: torch.UntypedStorage | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with self.recording.quietly() as was_quiet:
            if was_quiet or func.is_view or not all(map(is_plain, tensors_of((args, kwargs)))):
                return func(*args, **kwargs)
            return self._record(func, args, kwargs)

    def _record(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensors = tensors_of((args, kwargs))
        delayed = [tensor for tensor in tensors if self.recording.delays(tensor)]
        written = written_tensors(func, args, kwargs)
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        states = tuple(one.get_state() for one in generators_of(args, kwargs)) if is_random else ()
        if delayed and (torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags):
            args, kwargs = self._computed((args, kwargs))
            delayed = []
        self.recording.take_constants((args, kwargs), written)
        if not delayed:
            results = func(*args, **kwargs)
            self.recording.note(func, args, kwargs, results, generator_states=states)
            return results
        self._check_written(func, written)
        if is_random:
            self._draw(func, args, kwargs, written)
        results = _stand_in(func, args, kwargs, written)
        home = kwargs.get("device") or self.recording.device(delayed[0])
        self.recording.note(func, args, kwargs, results, generator_states=states, home=torch.device(home))
        return results

    def _check_written(self, operator: Any, written: list[torch.Tensor]) -> None:
        for tensor in written:
            if not self.recording.delays(tensor):
                raise DelayedInitializationError(
                    f"delayed initialisation: {operator} writes a value computed from a parameter into a tensor "
                    f"of shape {tuple(tensor.shape)} that is not a parameter. Construct the module that does this "
                    "in a delay_param_initialization(enabled=False) block"
                )

    def _computed(self, values: Any) -> Any:
        return pytree.tree_map_only(
            torch.Tensor, lambda one: self.recording.replay(one) if self.recording.delays(one) else one, values
        )

    def _draw(self, operator: Any, args: Any, kwargs: Any, written: list[torch.Tensor]) -> None:
        """Draw the random numbers that an operator would draw, and discard them."""

        def blank(tensor: torch.Tensor) -> torch.Tensor:
            if not self.recording.delays(tensor):
                return tensor
            device = self.recording.device(tensor)
            if len(written) == 1 and tensor is written[0] and device.type == "cpu":
                return self._in_scratch(tensor)
            return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device).zero_()

        args, kwargs = pytree.tree_map_only(torch.Tensor, blank, (args, kwargs))
        operator(*args, **kwargs)

    def _in_scratch(self, tensor: torch.Tensor) -> torch.Tensor:
        # One block for all draws: otherwise malloc places small live blocks between freed large ones, and after some
        # layers the process is as large as without delay.
        span = 1 + sum((length - 1) * step for length, step in zip(tensor.shape, tensor.stride(), strict=True))
        num_bytes = max(span, 1) * tensor.itemsize
        if self._scratch is None or self._scratch.nbytes() < num_bytes:
            self._scratch = torch.UntypedStorage(num_bytes)
        return torch.empty(0, dtype=tensor.dtype).set_(self._scratch, 0, tensor.size(), tensor.stride())


class PretendingMode(TorchFunctionMode):
    """Makes delayed tensors report the device they would normally have: constructors make buffers on it."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self.recording = recording

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        is_asked = not self.recording.is_quiet and (func in _ABOUT_PLACE or func in _READS or func is _SET)
        if not is_asked or not isinstance(args[0], torch.Tensor) or not self.recording.knows(args[0]):
            return func(*args, **kwargs)
        if func is _SET:
            return _set_items(*args)
        if func in _READS:
            return func(self.recording.replay(args[0]), *args[1:], **kwargs)
        device = self.recording.device(args[0])
        kind = _KINDS[_ABOUT_PLACE.index(func)]
        return device if kind is None else device.type == kind


_ABOUT_PLACE = (
    torch.Tensor.device.__get__,
    torch.Tensor.is_meta.__get__,
    torch.Tensor.is_cuda.__get__,
    torch.Tensor.is_cpu.__get__,
)
_KINDS = (None, "meta", "cuda", "cpu")  # device type that each property checks
_SET = torch.Tensor.__setitem__
_READS = (torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.__array__)


def _set_items(tensor: torch.Tensor, index: Any, value: Any) -> None:
    """Assign `tensor[index] = value` by recorded operations; torch's own loses a numeric `value` on meta."""
    indices = index if isinstance(index, tuple) else (index,)
    if all(one is None or one is Ellipsis or isinstance(one, int | slice) for one in indices):
        part = tensor[index]
        part.copy_(value) if isinstance(value, torch.Tensor) else part.fill_(value)
    elif all(isinstance(one, torch.Tensor | list | int) for one in indices):
        given = tuple(one if isinstance(one, torch.Tensor) else torch.tensor(one) for one in indices)
        tensor.index_put_(given, torch.as_tensor(value, dtype=tensor.dtype))
    else:
        raise DelayedInitializationError(
            f"delayed initialisation: a parameter of shape {tuple(tensor.shape)} is written by an index that mixes "
            f"slices and tensors ({index}); write it in two steps"
        )


def _stand_in(operator: Any, args: Any, kwargs: Any, written: list[torch.Tensor]) -> Any:
    """Return tensors without memory for the results of an operator."""
    if written:
        num = len(operator._schema.returns)
        return written[0] if num == 1 else tuple(written[:num]) or None
    args, kwargs = pytree.tree_map_only(
        torch.Tensor, lambda one: one if one.is_meta else one.to("meta"), (args, kwargs)
    )
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": torch.device("meta")}
    try:
        return operator(*args, **kwargs)
    except (NotImplementedError, RuntimeError) as error:
        raise DelayedInitializationError(
            f"delayed initialisation: the shape of what {operator} returns is not known before it is "
            "computed. Construct the module that does this in a "
            "delay_param_initialization(enabled=False) block"
        ) from error
