"""Values that programs pass by name, each kept until it is known to which step it belongs.

Where: `step_capture` has one of each. A program may pass a value before it calls the model or after the call; in an
evaluation nothing tells the two apart. As with smdebug, a value belongs to the step of the next event: the end of a
module's call, a loss, a gradient. After the backward pass that is the next step.

[Note: backward] Hooks on parameters tell that the backward pass has begun. They cost a call of Python each, so that
they are there only while a value waits, and the first one that is called removes them all. With `use_orig_params`, FSDP
computes gradients for flat parameters that are not among the model's. If the model was registered before FSDP wrapped
it they are out of reach, so that the optimizer's step is taken for the gradient. `fully_shard` and optimizers call
hooks in loops over the hooks themselves, which fail if a hook is removed meanwhile.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

_FLATTENED = "_fsdp_flattened"  # FSDP's attribute of parameters in a flat parameter
_FEW = 8  # parameters to hook when a missed gradient costs a late value at most
_log = logging.getLogger("clary.debugger")


class PassedValues:
    """The values of `save_tensor`, the last one of each name; threads of the backward pass may call `settle`.

    Args:
        save: called with a name and a value that belongs to the present step.
    """

    def __init__(self, save: Callable[[str, torch.Tensor], None]) -> None:
        self._save = save
        self._values: dict[str, torch.Tensor] = {}
        self._streams: dict[str, Any] = {}  # name -> the CUDA stream on which its value was copied
        self._handles: list[Any] = []
        self._sees_all = False  # whether all parameters are hooked
        self._ends_early = True  # whether the first hook that is called may remove all
        self._swapping = threading.Lock()  # each GPU has a thread of the backward pass

    def keep(self, name: str, value: torch.Tensor) -> None:
        """Keep a copy of a value [any shape], since the program may change it meanwhile."""
        self._values[name] = value.detach().clone()
        if value.is_cuda:
            self._streams[name] = torch.cuda.current_stream(value.device)

    def forget(self, name: str) -> None:
        """Drop a value that no step will save, and an earlier one of its name."""
        self._values.pop(name, None)

    def watch_backward(self, model: torch.nn.Module | None, *, all_parameters: bool) -> None:
        """Settle values once the backward pass of this step computes a gradient; see [Note: backward].

        Args:
            model: the model of the step.
            all_parameters: whether to hook all parameters; else a few.
        """
        if model is None or (self._handles and (self._sees_all or not all_parameters)):
            return
        self._unwatch()
        self._sees_all = all_parameters
        receiving = _receiving(model)
        self._ends_early = not any(
            kind.__name__ == "FSDPModule" for one in model.modules() for kind in type(one).__mro__
        )
        if not all_parameters:
            receiving = receiving[:: -(-len(receiving) // _FEW) or 1]
        self._handles += [one.register_post_accumulate_grad_hook(lambda _: self._see_backward()) for one in receiving]
        if not self._handles and any(getattr(one, _FLATTENED, False) for one in model.parameters()):
            self._ends_early = False
            self._handles.append(register_optimizer_step_pre_hook(lambda *_: self._see_backward()))

    def end_step(self) -> None:
        """Remove the hooks of this step; values stay for the next."""
        self._unwatch()

    def settle(self) -> None:
        """Save all values with the present step, which drops values of collections that it does not save."""
        if not self._values:
            return
        with self._swapping:
            values, self._values = self._values, {}
        for name, value in values.items():
            if value.is_cuda:
                _await_copy(value, self._streams[name])
            self._save(name, value)

    def close(self, has: Callable[[str], bool]) -> None:
        """Save values that no event followed with the last step; the log names values that it cannot take.

        Args:
            has: whether the last step has a value of a name.
        """
        late = [name for name in self._values if has(name)]
        for name in late:
            del self._values[name]
        if late:
            _log.warning(
                "debugger: the last values of %s are not saved: no step followed their save_tensor",
                ", ".join(late),
            )
        self.settle()
        self.end_step()

    def _see_backward(self) -> None:
        if self._ends_early:
            self._unwatch()
        self.settle()

    def _unwatch(self) -> None:
        with self._swapping:
            handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()


def _receiving(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the parameters for which a backward pass computes gradients; see [Note: backward]."""
    flat = [getattr(getattr(one, "_handle", None), "flat_param", None) for one in model.modules()]
    units = [one for one in flat if isinstance(one, torch.nn.Parameter)]
    own = [one for one in model.parameters() if not getattr(one, _FLATTENED, False)]
    found = {id(one): one for one in (*own, *units)}
    return [one for one in found.values() if one.requires_grad and one.is_leaf and not torch.nn.parameter.is_lazy(one)]


def _await_copy(value: torch.Tensor, copied_on: Any) -> None:
    """Let this thread's stream wait for the copy; a stream that is captured saves nothing and may not wait."""
    stream = torch.cuda.current_stream(value.device)
    if stream != copied_on and not torch.cuda.is_current_stream_capturing():
        stream.wait_stream(copied_on)
        value.record_stream(stream)


class EarlyValues:
    """Values that are saved in any case, kept from before the first step until it opens."""

    def __init__(self) -> None:
        self._calls: dict[str, Callable[[], None]] = {}

    def keep(self, name: str, call: Callable[[], None]) -> None:
        """Keep a call that saves a value, in place of an earlier one of its name."""
        self._calls[name] = call

    def save(self) -> None:
        """Make the calls, once."""
        if self._calls:
            calls, self._calls = self._calls, {}
            for call in calls.values():
                call()

    def close(self) -> None:
        """Say in the log which values are lost because the program had no step."""
        if self._calls:
            _log.warning(
                "debugger: %s not saved: there was no step, since no registered model was called",
                ", ".join(self._calls),
            )
            self._calls.clear()
