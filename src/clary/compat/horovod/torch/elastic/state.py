"""Elastic state of models, optimizers and samplers of torch."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import torch
from horovod.common.basics import rank
from horovod.common.elastic import ObjectState
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)

_SAVED = "clary.saved"  # key of the plain objects in a commit, next to the keys of the handlers' states


class StateHandler:
    """Saves, restores and broadcasts one value that has a state.

    Args:
        value: an object with `state_dict` and `load_state_dict`.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        self.saved: Any = copy.deepcopy(value.state_dict())

    def save(self) -> None:
        """Save a copy of the value's state."""
        self.saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        """Restore the value's state from the saved copy."""
        self.value.load_state_dict(self.saved)

    def set_value(self, value: Any) -> None:
        """Replace the handled value."""
        self.value = value
        self.save()

    def sync(self) -> None:
        """Send the state of rank 0 to all ranks. Raises: NotImplementedError unless overridden."""
        raise NotImplementedError


class ModelStateHandler(StateHandler):
    """Handles a model."""

    def sync(self) -> None:
        """Send the parameters and buffers of rank 0 to all ranks."""
        broadcast_parameters(self.value.state_dict(), root_rank=0)
        self.save()


class OptimizerStateHandler(StateHandler):
    """Handles an optimizer."""

    def sync(self) -> None:
        """Send the optimizer's state on rank 0 to all ranks."""
        broadcast_optimizer_state(self.value, root_rank=0)
        self.save()


class SamplerStateHandler(StateHandler):
    """Handles an ElasticSampler."""

    def sync(self) -> None:
        """Send the state of the rank with the most progress to all ranks."""
        states = allgather_object(self.value.state_dict())
        self.value.load_state_dict(max(states, key=lambda state: (state["epoch"], state["processed_num"])))
        self.save()


_HANDLERS: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """Return pairs of the class of a value and the class of its handler."""
    return list(_HANDLERS)


def set_handler_registry(registry: list[tuple[type, type[StateHandler]]]) -> None:
    """Set the pairs that `get_handler_registry` returns, for states that are made later."""
    _HANDLERS[:] = registry


class TorchState(ObjectState):
    """State of a training loop with torch; each value is an attribute.

    Args:
        model, optimizer: may be None.
        kwargs: further models, optimizers and samplers, each with its handler, and plain objects.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        values = {**kwargs, "model": model, "optimizer": optimizer}
        self._handlers: dict[str, StateHandler] = {}
        plain = {}
        for name, value in values.items():
            handler = next((made for kind, made in _HANDLERS if isinstance(value, kind)), None)
            if handler is not None:
                self._handlers[name] = handler(value)
                super().__setattr__(name, value)
            elif value is not None or name not in ("model", "optimizer"):
                plain[name] = value
        super().__init__(bcast_object=broadcast_object, get_rank=rank, **plain)

    def save(self) -> None:
        """Save copies of all values."""
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """Restore all values from the copies."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Send the values of rank 0 to all ranks; for samplers, those of the rank with the most progress."""
        for handler in self._handlers.values():
            handler.sync()
        super().sync()

    def reset(self) -> None:
        """Make samplers distribute the remaining samples of their epoch among the new ranks."""
        for handler in self._handlers.values():
            if isinstance(handler, SamplerStateHandler):
                handler.value.load_state_dict(handler.value.state_dict())

    def packer(self) -> Callable[[], bytes]:
        """Return a function that returns all copies in the format of torch.save."""
        kept = {name: handler.saved for name, handler in self._handlers.items()}
        kept[_SAVED] = copy.deepcopy(self._saved_state)

        def pack() -> bytes:
            stream = io.BytesIO()
            torch.save(kept, stream)
            return stream.getvalue()

        return pack

    def unpack(self, content: bytes) -> None:
        """Load the copies from a commit that this job wrote; values that the commit lacks stay unchanged."""
        kept = torch.load(io.BytesIO(content), map_location="cpu", weights_only=False)
        for name, handler in self._handlers.items():
            handler.saved = kept.get(name, handler.saved)
        self._saved_state.update(kept.get(_SAVED, {}))

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__.get("_handlers", {}):
            self._handlers[name].set_value(value)
        super().__setattr__(name, value)
