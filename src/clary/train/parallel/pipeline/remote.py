"""Calls of modules on other ranks, and the service of this rank's modules to other ranks.

Where: `placement` installs a redirection (door) on every module that another rank owns; `server` sends the requests
and runs `Host.serve`.

For the caller, a remote module is one node of the autograd graph: its forward sends and receives tensors, its backward
sends and receives gradients. So autograd works across ranks as usual: a module may be called twice, and its outputs may
be used anywhere, or not at all. The owner keeps the outputs of a call, with their graph, until the gradients arrive or
the step ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from clary.train.parallel.pipeline.lending import arrived
from clary.train.parallel.pipeline.messages import CallId, Message, Subject, put_tensors, take_tensors
from clary.train.parallel.pipeline.modes import Modes
from clary.train.parallel.pipeline.server import Server

_ORIGINAL = "_call_impl"  # the method that torch's nn.Module.__call__ calls; an attribute of the instance overrides it


@dataclass(frozen=True)
class _Kept:
    """The tensors of a call that a backward request needs: leaves and outputs."""

    inputs: Sequence[torch.Tensor]
    outputs: Sequence[torch.Tensor]


class Host:
    """Serves the modules of this rank, and calls modules of other ranks.

    Args:
        find: maps a name to the function to call.
        device: device of this rank.
    """

    def __init__(self, find: Callable[[str], Callable[..., Any]], device: torch.device) -> None:
        self.server: Server | None = None  # set once, before the first call
        self._find = find
        self._device = device
        self._kept: dict[CallId, _Kept] = {}
        self._anchor = torch.zeros((), requires_grad=True)  # outputs may need gradients even if no input does

    def call(self, owner: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a module of another rank; return its outputs, on this rank's device.

        Args:
            owner: pipeline rank that holds the module.
            name: path of the module, or path[start:stop] for a run of children of a Sequential.
            args: arguments, which may contain nested tensors, as may `kwargs`; all other values are pickled.

        Raises: RemoteFailure if the module failed; ParallelError outside of a step.
        """
        assert self.server is not None
        tensors: list[torch.Tensor] = []
        # the owner uses its own GPU
        body = (name, take_tensors((args, kwargs), tensors), replace(Modes.of_this_thread(), gpu=None))
        call = _Call(self, owner, self.server.next_call(), body)
        records = torch.is_grad_enabled()
        outputs = _RemoteCall.apply(call, self._anchor, *tensors) if records else call.forward(tensors)
        return put_tensors(call.structure, outputs)

    def serve(self, message: Message) -> Message:
        """Serve a request of another rank; return the response."""
        call = message.call
        assert call is not None
        if message.subject is Subject.BACKWARD:
            grads = self._backward(call, self._to_device(message.tensors), message.body[1])
            place = [grad is not None for grad in grads]
            body = (message.subject, place)
            return Message(Subject.OUTPUT, call, body, [grad for grad in grads if grad is not None])
        name, structure, modes, flows = message.body
        inputs = [
            tensor.requires_grad_(flow) for tensor, flow in zip(self._to_device(message.tensors), flows, strict=True)
        ]
        # Clones of the leaves, since modules may change their arguments in place.
        given = [tensor.clone() if tensor.requires_grad else tensor for tensor in inputs]
        args, kwargs = put_tensors(structure, given)
        with modes.entered():
            result = self._find(name)(*args, **kwargs)
        outputs: list[torch.Tensor] = []
        found = take_tensors(result, outputs)
        out_flows = [output.requires_grad for output in outputs]
        if any(out_flows):
            self._kept[call] = _Kept(inputs, outputs)
        return Message(Subject.OUTPUT, call, (message.subject, found, out_flows), outputs)

    def forget(self) -> None:
        """Drop graphs that had no backward pass."""
        self._kept.clear()

    def _backward(
        self, call: CallId, grads: Sequence[torch.Tensor], places: Sequence[bool]
    ) -> list[torch.Tensor | None]:
        kept = self._kept.pop(call)
        given = iter(grads)
        pairs = [(output, next(given)) for output, is_there in zip(kept.outputs, places, strict=True) if is_there]
        with torch.autograd.set_multithreading_enabled(False):  # on this thread, which may wait for other ranks
            torch.autograd.backward([output for output, _ in pairs], [grad for _, grad in pairs])
        return [one.grad if one.requires_grad else None for one in kept.inputs]

    def _to_device(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [arrived(tensor, self._device) for tensor in tensors]


class _Call:
    """One call, from its forward request to the response to its backward request."""

    def __init__(self, host: Host, owner: int, call: CallId, body: tuple[str, Any, Modes]) -> None:
        self.structure: Any = None
        self.flows: Sequence[bool] = ()  # for each output, whether it needs a gradient
        self._host = host
        self._owner = owner
        self._id = call
        self._body = body

    def forward(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Request the forward pass."""
        name, structure, modes = self._body
        flows = [modes.records_gradients and tensor.requires_grad for tensor in tensors]
        server, device = self._host.server, self._host._device
        assert server is not None
        answer = server.ask(Subject.FORWARD, self._owner, self._id, (name, structure, modes, flows), tensors)
        _, self.structure, self.flows = answer.body
        return tuple(arrived(tensor, device) for tensor in answer.tensors)

    def backward(self, grads: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Request the backward pass; return the gradients of the tensors that `forward` sent."""
        server, device = self._host.server, self._host._device
        assert server is not None
        places = [grad is not None for grad in grads]
        present = [grad for grad in grads if grad is not None]
        answer = server.ask(Subject.BACKWARD, self._owner, self._id, (self._body[0], places), present)
        given = iter(answer.tensors)
        return [arrived(next(given), device) if is_there else None for is_there in answer.body[1]]


class _RemoteCall(torch.autograd.Function):
    """A call of a module on another rank, as a node of the graph."""

    @staticmethod
    def forward(ctx: Any, call: _Call, _anchor: torch.Tensor, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.call = call
        ctx.set_materialize_grads(False)
        outputs = call.forward(tensors)
        ctx.mark_non_differentiable(*(output for output, flow in zip(outputs, call.flows, strict=True) if not flow))
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        flowing = [grad if flow else None for grad, flow in zip(grads, ctx.call.flows, strict=True)]
        return (None, None, *ctx.call.backward(flowing))


def install_door(module: torch.nn.Module, enter: Callable[..., Any]) -> None:
    """Redirect calls of a module to `enter`; the module's hooks run on the rank that runs the module."""
    module.__dict__[_ORIGINAL] = enter


def inner_call(module: torch.nn.Module) -> Callable[..., Any]:
    """Return a function that calls a module itself, without the redirection."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return type(module)._call_impl(module, *args, **kwargs)

    return call
