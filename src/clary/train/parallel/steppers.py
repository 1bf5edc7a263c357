"""Steppers: implementations of an optimizer step for each placement of parameters, gradients and state.

Where: `DistributedOptimizer` chooses a stepper once modules are placed.

    Whole         every rank updates its own parameters, as torch does
    Half          every rank updates float32 copies of its half-precision parameters
    SpreadState   `shard_optimizer_state`: each replica updates its share of the parameters and sends it to the others
    Shards        `sharded_data_parallel_degree`: each replica updates its shard of every parameter
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist

from clary.train.parallel.errors import ParallelError
from clary.train.parallel.layout.mesh import Along
from clary.train.parallel.optimizers.norms import Norms
from clary.train.parallel.optimizers.ranks import NormsOverRanks
from clary.train.parallel.runtime import Runtime
from clary.train.parallel.sharded.deepspeed_names import optimizer_names
from clary.train.parallel.sharded.optimizer import ShardedOptimizer
from clary.train.parallel.sharded.optimizer_state import ShardedStateOptimizer
from clary.train.parallel.sharded.state import (
    full_optimizer_state,
    load_full_optimizer_state,
    load_local_optimizer_state,
    local_optimizer_state,
)

State = dict[str, Any]


class Stepper(Protocol):
    """The step of one rank."""

    @property
    def have_gradients(self) -> bool:
        """Whether `prepare` found gradients on any replica; False if this stepper does not check."""

    def prepare(self) -> None:
        """Send gradients to the ranks that use them in the step, once before a step. All ranks call it."""

    def step(self, loss_scale: float) -> bool:
        """Unscale gradients and step; return False, without a step, if any rank has a gradient that is not finite.

        All ranks call it. Without fp16, a stepper may leave out the check.
        """

    def zero_grad(self, set_to_none: bool) -> None:
        """Clear all gradients."""

    def clip(self, max_norm: float, loss_scale: float, *, among: Collection[int] | None = None) -> float:
        """Clip gradients by the norm of the whole model; return the norm before clipping, -1 if not finite.

        Steppers that do not check gradients return a norm that is not finite as it is.

        Args:
            max_norm: the largest norm that is not clipped.
            loss_scale: the factor of the gradients.
            among: ids of the parameters to clip, or of the tensors that the optimizer updates in their place; None
                clips all.

        Raises: ParallelError if parameters can only be clipped all together, and some are not in `among`.
        """

    def add_group(self, add: Callable[[], None]) -> None:
        """Call `add`, which adds a group to the optimizer, and step the group's parameters from then on.

        Raises: ParallelError, without the call, if the stepper's parameters are fixed.
        """

    def take_parameters(self) -> None:
        """Continue from the parameters' current values, after a load."""

    def local_state(self) -> State:
        """Return this rank's part of the state."""

    def full_state(self) -> State:
        """Return the state of all parameters, in host memory. All ranks call it."""

    def load(self, state: State) -> None:
        """Load a local or full state."""


class Whole:
    """Updates the parameters of this rank.

    State dicts number parameters as torch does: across all groups and all ranks.
    """

    have_gradients = False  # see `Stepper`; the model checks instead

    def __init__(self, optimizer: torch.optim.Optimizer, runtime: Runtime) -> None:
        self._optimizer = optimizer
        self._runtime = runtime
        self._local: dict[int, torch.nn.Parameter] = {}  # by number
        self._num_numbered = 0  # number of parameters in all groups, of all ranks
        self._take_groups(optimizer.param_groups)
        if _scales_by_norms(optimizer):
            optimizer.norms = NormsOverRanks(runtime, self._is_slice)

    def _take_groups(self, groups: Sequence[dict[str, Any]]) -> None:
        """Take in new groups, which follow the earlier ones."""
        local = {id(parameter) for parameter in self._runtime.model.local_parameters()}
        for parameter in (one for group in groups for one in group["params"]):
            if id(parameter) in local:
                self._local[self._num_numbered] = parameter
            self._num_numbered += 1

    def add_group(self, add: Callable[[], None]) -> None:
        """See `Stepper`."""
        num_groups = len(self._optimizer.param_groups)
        add()
        self._take_groups(self._optimizer.param_groups[num_groups:])

    def _is_slice(self, stepped: torch.Tensor) -> bool:
        """Return whether an updated parameter is a slice."""
        return getattr(stepped, "tensor_slice", None) is not None

    def prepare(self) -> None:
        """See `Stepper`; the model has already averaged gradients."""

    def step(self, loss_scale: float) -> bool:
        """See `Stepper`; gradients are neither scaled nor checked here."""
        self._optimizer.step()
        return True

    def zero_grad(self, set_to_none: bool) -> None:
        """See `Stepper`."""
        self._optimizer.zero_grad(set_to_none=set_to_none)

    def clip(self, max_norm: float, loss_scale: float, *, among: Collection[int] | None = None) -> float:
        """See `Stepper`; does not check gradients.

        Args: as `Stepper.clip`.
        """
        # A script may name parameters that the optimizer lacks.
        own = self._local.values() if among is None else self._runtime.model.local_parameters()
        grads = [(one, one.grad) for one in own if one.grad is not None and (among is None or id(one) in among)]
        return clip_gradients(grads, max_norm, self._runtime)

    def take_parameters(self) -> None:
        """See `Stepper`; a no-op, since there are no masters."""

    def local_state(self) -> State:
        """See `Stepper`."""
        return dict(self._optimizer.state_dict())

    def full_state(self) -> State:
        """See `Stepper`."""
        found = self._optimizer.state_dict()
        return {**found, "state": self._gather(found["state"])}

    def load(self, state: State) -> None:
        """See `Stepper`."""
        own = {number: self._cut(number, one) for number, one in state["state"].items() if number in self._local}
        self._optimizer.load_state_dict({**state, "state": own})

    def _gather(self, own: dict[int, Any]) -> dict[int, Any]:
        """Gather the states of all ranks of a model, by parameter, with slices joined."""
        groups = self._runtime.groups
        if groups.size(Along.TP) > 1:
            parts = groups.allgather({number: _to_host(one) for number, one in own.items()}, Along.TP)
            own = {number: self._join(number, [part[number] for part in parts]) for number in own}
        gathered = groups.allgather({number: _to_host(one) for number, one in own.items()}, Along.PP)
        return dict(sorted((number, one) for part in gathered for number, one in part.items()))

    def _join(self, number: int, parts: list[Any]) -> Any:
        """Join the tensor ranks' states of one parameter: slices or equal values."""
        piece: Any = getattr(self._local[number], "tensor_slice", None)
        first = parts[0]
        if isinstance(first, dict):
            return {key: self._join(number, [part[key] for part in parts]) for key in first}
        is_slice = piece is not None and isinstance(first, torch.Tensor) and first.shape == self._local[number].shape
        return torch.cat(parts, dim=piece.dimension) if is_slice else first

    def _cut(self, number: int, value: Any) -> Any:
        """Return this rank's slice of a whole parameter's state; a slice is returned unchanged."""
        if isinstance(value, dict):
            return {key: self._cut(number, item) for key, item in value.items()}
        piece: Any = getattr(self._local[number], "tensor_slice", None)
        shape = self._local[number].shape
        is_whole = piece is not None and isinstance(value, torch.Tensor) and value.dim() == len(shape)
        return piece.of(value) if is_whole and value.shape != shape else value


class Half(Whole):
    """Updates float32 copies (masters) of half-precision parameters.

    Before a step, masters take over values that a script wrote into parameters since the last step, for example by
    clamping.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, runtime: Runtime) -> None:
        self._masters: dict[int, torch.nn.Parameter] = {}
        self._sliced_masters: set[int] = set()  # ids
        # gradients of parameters without a master that are unscaled already, until the step
        self._unscaled: dict[int, torch.Tensor] = {}
        # version counters of parameters, as of the last copy between parameters and masters
        self._versions: dict[int, int] = {}
        super().__init__(optimizer, runtime)

    def _take_groups(self, groups: Sequence[dict[str, Any]]) -> None:
        known = set(self._local)
        super()._take_groups(groups)
        of_parameter: dict[int, torch.nn.Parameter] = {}
        for number, parameter in self._local.items():
            if number in known or not parameter.is_floating_point() or parameter.dtype == torch.float32:
                continue
            master = torch.nn.Parameter(parameter.detach().float().clone(), parameter.requires_grad)
            of_parameter[id(parameter)] = self._masters[number] = master
            self._versions[number] = parameter._version
            if super()._is_slice(parameter):
                self._sliced_masters.add(id(master))
        for group in groups:
            group["params"] = [of_parameter.get(id(one), one) for one in group["params"]]

    def _is_slice(self, stepped: torch.Tensor) -> bool:
        return id(stepped) in self._sliced_masters or super()._is_slice(stepped)

    def step(self, loss_scale: float) -> bool:
        """See `Stepper`."""
        self._take_writes()
        grads = [grad for _, grad in self._take_gradients(loss_scale)]
        is_finite = are_finite_everywhere(grads, self._runtime)
        if is_finite:
            self._optimizer.step()
        with torch.no_grad():
            for number, master in self._masters.items():
                if is_finite:
                    self._local[number].copy_(master)
                master.grad = None
        self._unscaled.clear()
        self._note_versions()
        return is_finite

    def zero_grad(self, set_to_none: bool) -> None:
        """See `Stepper`."""
        super().zero_grad(set_to_none)
        self._unscaled.clear()
        for number in self._masters:
            parameter = self._local[number]
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()

    def clip(self, max_norm: float, loss_scale: float, *, among: Collection[int] | None = None) -> float:
        """See `Stepper`.

        Args: as `Stepper.clip`.
        """
        grads = self._take_gradients(loss_scale)
        if among is not None:
            named = {id(self._local[number]) for number, one in self._masters.items() if id(one) in among}.union(among)
            grads = [(parameter, grad) for parameter, grad in grads if id(parameter) in named]
        if not are_finite_everywhere([grad for _, grad in grads], self._runtime):
            return -1.0
        return clip_gradients(grads, max_norm, self._runtime)

    def take_parameters(self) -> None:
        """See `Stepper`."""
        with torch.no_grad():
            for number, master in self._masters.items():
                master.copy_(self._local[number])
        self._note_versions()

    def _note_versions(self) -> None:
        self._versions = {number: self._local[number]._version for number in self._masters}

    def _take_writes(self) -> None:
        with torch.no_grad():
            for number, master in self._masters.items():
                if self._local[number]._version != self._versions[number]:
                    master.copy_(self._local[number])
        self._note_versions()

    def local_state(self) -> State:
        """See `Stepper`."""
        self._take_writes()
        masters = {number: master.detach().clone() for number, master in self._masters.items()}
        return {**super().local_state(), "masters": masters}

    def full_state(self) -> State:
        """See `Stepper`."""
        self._take_writes()
        masters = {number: master.detach() for number, master in self._masters.items()}
        return {**super().full_state(), "masters": self._gather(masters)}

    def load(self, state: State) -> None:
        """See `Stepper`; masters that the state lacks are copied from the parameters."""
        super().load({name: value for name, value in state.items() if name != "masters"})
        self.take_parameters()
        masters = state.get("masters", {})
        with torch.no_grad():
            for number, master in self._masters.items():
                if number in masters:
                    master.copy_(self._cut(number, masters[number]))

    def _take_gradients(self, loss_scale: float) -> list[tuple[torch.nn.Parameter, torch.Tensor]]:
        """Move unscaled gradients to the masters; return the gradients of all updated tensors, by parameter."""
        found = []
        for number, parameter in self._local.items():
            stepped = self._masters.get(number, parameter)
            if parameter.grad is not None:
                if stepped is not parameter:
                    stepped.grad, parameter.grad = parameter.grad.float().div_(loss_scale), None
                elif loss_scale != 1.0 and self._unscaled.get(number) is not parameter.grad:
                    self._unscaled[number] = parameter.grad.div_(loss_scale)
            if stepped.grad is not None:
                found.append((parameter, stepped.grad))
        return found


class SpreadState:
    """Updates a share of the parameters, and receives the other parameters from the ranks that updated them."""

    def __init__(self, optimizer: torch.optim.Optimizer, runtime: Runtime) -> None:
        self._runtime = runtime
        self._is_half = runtime.configuration.fp16
        group_of = runtime.model.group_of
        local = {id(parameter) for parameter in runtime.model.local_parameters()}
        for group in optimizer.param_groups:
            group["params"] = [one for one in group["params"] if id(one) in local]
        if _scales_by_norms(optimizer):
            if runtime.groups.size(Along.TP) > 1:
                raise ValueError(
                    f"{type(optimizer).__name__} scales by norms of whole parameters: with tensor parallelism and "
                    "shard_optimizer_state, owners on different tensor ranks have slices of different "
                    "parameters; disable one of the two"
                )
            # Each parameter of a stage has one owner among its replicas.
            optimizer.norms = NormsOverRanks(runtime, lambda _: False, groups=(Along.PP, Along.DP))
        with_masters = runtime.configuration.fp16 or runtime.configuration.bf16
        self.inner = ShardedStateOptimizer(optimizer, group_of, with_masters=with_masters)

    @property
    def have_gradients(self) -> bool:
        """See `Stepper`."""
        return self.inner.have_gradients

    def prepare(self) -> None:
        """See `Stepper`."""
        if not self.inner.are_reduced:
            self.inner.reduce_gradients()

    def step(self, loss_scale: float) -> bool:
        """See `Stepper`; checks gradients only with fp16."""
        self.prepare()
        if self._is_half and not are_finite_everywhere(self.inner.owned_gradients(), self._runtime):
            return False
        self.inner.step(loss_scale=loss_scale)
        return True

    def add_group(self, add: Callable[[], None]) -> None:
        """See `Stepper`; each parameter has its owner from the start.

        Raises: ParallelError.
        """
        raise _late_group("shard_optimizer_state", "each parameter gets a rank that updates it")

    def take_parameters(self) -> None:
        """See `Stepper`."""
        self.inner.take_parameters()

    def zero_grad(self, set_to_none: bool) -> None:
        """See `Stepper`."""
        self.inner.zero_grad(set_to_none)

    def clip(self, max_norm: float, loss_scale: float, *, among: Collection[int] | None = None) -> float:
        """See `Stepper`; checks gradients only with fp16.

        Args: as `Stepper.clip`.
        """
        _check_all(among, self._runtime)
        self.prepare()
        grads = self.inner.owned_gradients()
        if self._is_half and not are_finite_everywhere(grads, self._runtime):
            return -1.0
        of_groups = {id(one) for _, one in self._runtime.model.scaled_batch_reducer_named_parameters()}
        pairs = [
            # A parameter replicated over dp has one owner in dp; a parameter replicated over rdp has one owner per
            # tensor rank.
            (parameter if id(parameter) in of_groups else None, grad)
            for parameter, grad in zip(self.inner.owned_parameters(), grads, strict=True)
        ]
        groups = (Along.PP, Along.DP)
        return clip_gradients(pairs, max_norm * loss_scale, self._runtime, groups=groups) / loss_scale

    def local_state(self) -> State:
        """See `Stepper`."""
        return self.inner.local_state_dict()

    def full_state(self) -> State:
        """See `Stepper`.

        Raises: RuntimeError if a model lies on several ranks.
        """
        if self._runtime.mesh.degree(Along.MP) > 1:
            raise RuntimeError(
                "state_dict: optimizer state that is sharded over replicas cannot be joined to a whole state "
                "if a model is a pipeline or has slices; save local_state_dict on every rank"
            )
        return self.inner.full_state_dict()

    def load(self, state: State) -> None:
        """See `Stepper`."""
        if "optimizer" in state:
            self.inner.load_local_state_dict(state)
        else:
            self.inner.load_full_state_dict(state)


class Shards:
    """Updates this rank's shard of every parameter; its step clips by the norm of the whole gradient."""

    have_gradients = False  # see `Stepper`; ranks of a sharding group all have gradients, or wait for each other

    def __init__(self, optimizer: torch.optim.Optimizer, runtime: Runtime) -> None:
        cut = runtime.groups.size(Along.TP) > 1
        self._runtime = runtime
        model = runtime.model
        num_tensor_ranks = runtime.groups.size(Along.TP)

        def weight(name: str) -> float:  # so that a parameter on several tensor ranks counts once
            return 1.0 if name in model.tensor_slices else 1.0 / num_tensor_ranks

        self.inner = ShardedOptimizer(
            optimizer,
            model.sharded,
            norm_group=runtime.groups.process_group(Along.TP) if cut else None,
            norm_weight=weight if cut else None,
        )
        self.deepspeed_names = optimizer_names(model.sharded, self.inner.parameters)

    def prepare(self) -> None:
        """See `Stepper`; `step` reduces gradients itself."""

    def add_group(self, add: Callable[[], None]) -> None:
        """See `Stepper`; shards replace parameters from the start.

        Raises: ParallelError.
        """
        raise _late_group("sharded_data_parallel_degree above 1", "a shard replaces each parameter")

    def take_parameters(self) -> None:
        """See `Stepper`; a no-op, since loads write into the shards."""

    def step(self, loss_scale: float) -> bool:
        """See `Stepper`."""
        has_stepped: bool = self.inner.step(loss_scale=loss_scale)
        return has_stepped

    def zero_grad(self, set_to_none: bool) -> None:
        """See `Stepper`."""
        self.inner.zero_grad(set_to_none)

    def clip(self, max_norm: float, loss_scale: float, *, among: Collection[int] | None = None) -> float:
        """See `Stepper`; a step clips to `sdp_gradient_clipping` as well.

        Args: as `Stepper.clip`.
        """
        _check_all(among, self._runtime)
        norm: float = self.inner.clip(max_norm, loss_scale=loss_scale)
        return norm

    def local_state(self) -> State:
        """See `Stepper`."""
        return local_optimizer_state(self.inner)

    def full_state(self) -> State:
        """See `Stepper`.

        Raises: RuntimeError with tensor parallelism.
        """
        if self._runtime.groups.size(Along.TP) > 1:
            raise RuntimeError(
                "state_dict: shards of tensor-parallel slices cannot be joined to a whole state; save "
                "local_state_dict on every rank"
            )
        return full_optimizer_state(self.inner)

    def load(self, state: State) -> None:
        """See `Stepper`."""
        if "optimizer" in state:
            load_local_optimizer_state(self.inner, state)
        else:
            load_full_optimizer_state(self.inner, state)


def make_stepper(optimizer: torch.optim.Optimizer, runtime: Runtime) -> Stepper:
    """Return the stepper for the configuration."""
    configuration = runtime.configuration
    if configuration.sharded_data_parallel_degree > 1:
        return Shards(optimizer, runtime)
    if configuration.shard_optimizer_state:
        return SpreadState(optimizer, runtime)
    return Half(optimizer, runtime) if configuration.fp16 or configuration.bf16 else Whole(optimizer, runtime)


def _late_group(key: str, what: str) -> ParallelError:
    return ParallelError(
        f"add_param_group: with {key}, {what} once, when modules are placed, so parameters of a later group would not "
        "be trained: give all parameters to the optimizer when you make it, in groups, and those that are to be "
        "trained later with lr=0 until then"
    )


def _scales_by_norms(optimizer: Any) -> bool:
    return isinstance(getattr(optimizer, "norms", None), Norms)


def are_finite_everywhere(grads: list[torch.Tensor], runtime: Runtime) -> bool:
    """Return whether all gradients on all ranks are finite. All ranks call it."""
    has_bad = any(not bool(torch.isfinite(grad).all()) for grad in grads)
    flag = torch.tensor([float(has_bad)], device=runtime.device)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return not bool(flag.item())


def _check_all(among: Collection[int] | None, runtime: Runtime) -> None:
    """Check that `among` includes all trained parameters, since shards can only be clipped all together.

    Raises: ParallelError if it does not.
    """
    if among is None:
        return
    trained = [one for one in runtime.model.parameters() if one.requires_grad]
    stepped = [one for group in runtime.optimizer.param_groups for one in group["params"]]
    missing = min(sum(id(one) not in among for one in trained), sum(id(one) not in among for one in stepped))
    if missing:
        raise ParallelError(
            f"clip_grad_norm_ was given all but {missing} of the parameters: with shard_optimizer_state "
            "or sharded data parallelism, all parameters must be clipped together; pass "
            "model.parameters()"
        )


def clip_gradients(
    grads: Sequence[tuple[torch.nn.Parameter | None, torch.Tensor]],
    max_norm: float,
    runtime: Runtime,
    *,
    groups: tuple[Along, ...] = (Along.MP,),
) -> float:
    """Scale gradients down to a norm over several ranks; return the norm before, which these ranks share.

    Args:
        grads: (parameter, gradient) pairs; None instead of a parameter that one rank alone has. A parameter that is not
            a slice lies on every tensor rank, and counts once.
        groups: groups of ranks over which squares are summed.
    """
    num_tensor_ranks = runtime.groups.size(Along.TP)
    square = torch.zeros(1, dtype=torch.float64, device=runtime.device)
    for parameter, grad in grads:
        is_copy = parameter is not None and getattr(parameter, "tensor_slice", None) is None
        square += grad.double().pow(2).sum() / (num_tensor_ranks if is_copy else 1)
    for along in groups:
        dist.all_reduce(square, group=runtime.groups.process_group(along))
    norm = math.sqrt(square.item())
    if norm > max_norm:
        for _, grad in grads:
            grad.mul_(max_norm / (norm + 1e-6))
    return norm


def _to_host(value: Any) -> Any:
    """Copy a parameter's state to host memory."""
    if isinstance(value, dict):
        return {key: _to_host(item) for key, item in value.items()}
    return value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value
