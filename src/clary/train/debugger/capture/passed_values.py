"""Values that programs pass by name, each kept until it is known to which step it belongs.

Where: `step_capture` has one of each. A program may pass a value before it calls the model or after the call; in an
evaluation nothing tells the two apart. As with smdebug, a value belongs to the step of the next event: the end of a
module's call, a loss, a gradient. After the backward pass that is the next step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

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

    def keep(self, name: str, value: torch.Tensor) -> None:
        """Keep a copy, since the program may change the value meanwhile."""
        self._values[name] = value.detach().clone()
        if value.is_cuda:
            self._streams[name] = torch.cuda.current_stream(value.device)

    def forget(self, name: str) -> None:
        """Drop a value that no step will save, and an earlier one of its name."""
        self._values.pop(name, None)

    def watch_backward(self, model: torch.nn.Module | None) -> None:
        """Settle values once the backward pass of this step computes a gradient; a second call does nothing."""
        if self._handles or model is None or not torch.is_grad_enabled():
            return
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.is_leaf and not torch.nn.parameter.is_lazy(parameter):
                self._handles.append(parameter.register_post_accumulate_grad_hook(lambda _: self.settle()))

    def end_step(self) -> None:
        """Remove the hooks of this step; values stay for the next."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def settle(self) -> None:
        """Save all values with the present step, which drops those that it does not save."""
        if self._values:
            values, self._values = self._values, {}
            for name, value in values.items():
                if value.is_cuda:
                    _await_copy(value, self._streams[name])
                self._save(name, value)

    def close(self, has: Callable[[str], bool]) -> None:
        """Save the values that no event followed with the last step, and name those that it cannot take in the log.

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
