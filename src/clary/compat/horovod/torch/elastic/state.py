"""State of models, optimizers and samplers of torch."""

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

_SAVED = "clary.saved"  # key of the plain objects, among the handlers' states in a commit


class StateHandler:
    """Saves, restores and shares one value with a state.

    Args:
        value: with `state_dict` and `load_state_dict`.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        self.saved: Any = copy.deepcopy(value.state_dict())

    def save(self) -> None:
        """Keep a copy of the value's state."""
        self.saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        """Give the value the kept state."""
        self.value.load_state_dict(self.saved)

    def set_value(self, value: Any) -> None:
        """Replace the handled value."""
        self.value = value
        self.save()

    def sync(self) -> None:
        """Give all ranks the state of rank 0. Raises: NotImplementedError here; subclasses do it."""
        raise NotImplementedError


class ModelStateHandler(StateHandler):
    """Handles a model."""

    def sync(self) -> None:
        """Give all ranks the parameters and buffers of rank 0."""
        broadcast_parameters(self.value.state_dict(), root_rank=0)
        self.save()


class OptimizerStateHandler(StateHandler):
    """Handles an optimizer."""

    def sync(self) -> None:
        """Give all ranks the optimizer's state of rank 0."""
        broadcast_optimizer_state(self.value, root_rank=0)
        self.save()


class SamplerStateHandler(StateHandler):
    """Handles an ElasticSampler."""

    def sync(self) -> None:
        """Give all ranks the state of the rank with the most progress."""
        states = allgather_object(self.value.state_dict())
        self.value.load_state_dict(max(states, key=lambda state: (state["epoch"], state["processed_num"])))
        self.save()


_HANDLERS: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """Return pairs: a class of values, and the class that handles them."""
    return list(_HANDLERS)


def set_handler_registry(registry: list[tuple[type, type[StateHandler]]]) -> None:
    """Set the pairs that `get_handler_registry` returns, for states that are made later."""
    _HANDLERS[:] = registry


class TorchState(ObjectState):
    """State of a training loop with torch; each value is an attribute.

    Args:
        model, optimizer: may be None.
        kwargs: further models, optimizers and samplers, which are handled as such, and plain objects.
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
        """Keep copies of all values."""
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """Go back to the copies."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Give all ranks the values of rank 0; for samplers, of the rank with the most progress."""
        for handler in self._handlers.values():
            handler.sync()
        super().sync()

    def reset(self) -> None:
        """Make samplers share out the rest of their epoch among the new ranks."""
        for handler in self._handlers.values():
            if isinstance(handler, SamplerStateHandler):
                handler.value.load_state_dict(handler.value.state_dict())

    def packer(self) -> Callable[[], bytes]:
        """Return a function that returns all copies as torch.save writes them."""
        kept = {name: handler.saved for name, handler in self._handlers.items()}
        kept[_SAVED] = copy.deepcopy(self._saved_state)

        def pack() -> bytes:
            stream = io.BytesIO()
            torch.save(kept, stream)
            return stream.getvalue()

        return pack

    def unpack(self, content: bytes) -> None:
        """Keep the copies of a commit that this job wrote; values that are not in it stay."""
        kept = torch.load(io.BytesIO(content), map_location="cpu", weights_only=False)
        for name, handler in self._handlers.items():
            handler.saved = kept.get(name, handler.saved)
        self._saved_state.update(kept.get(_SAVED, {}))

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__.get("_handlers", {}):
            self._handlers[name].set_value(value)
        super().__setattr__(name, value)
