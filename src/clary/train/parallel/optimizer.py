"""`DistributedOptimizer`: an optimizer for parameters that are spread over ranks.

Where: scripts wrap their optimizer after the model; each rank's `step` updates the parameters on that rank.

[Note: fp16] With `fp16`, parameters are half precision, and the inner optimizer updates float32 copies of them
(masters). Losses are scaled so that small gradients do not vanish; `step` divides gradients by the scale, skips the
update if any rank has a gradient that is not finite, and adapts the scale. `steppers` implements the updates.
Source: mixed precision training, arXiv 1710.03740.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from clary.train.parallel import runtime
from clary.train.parallel.checkpoint.model_state import IS_PARTIAL
from clary.train.parallel.checkpoint.waiting import load_options, whole_of_optimizer, with_options
from clary.train.parallel.errors import ParallelError
from clary.train.parallel.loss_scale import LossScale
from clary.train.parallel.misuse import check_parameters, stepping
from clary.train.parallel.numbering import Numbering
from clary.train.parallel.steppers import Stepper, make_stepper

_SCALE = "loss_scale"  # key in states
_LOG = logging.getLogger("clary.smp")


class DistributedOptimizer(torch.optim.Optimizer):
    """Wraps the optimizer of a program.

    Args:
        optimizer: optimizer of the wrapped model's parameters.
        static_loss_scale: loss scale of fp16; None with `dynamic_loss_scale`.
        dynamic_loss_scale: whether the scale adapts.
        dynamic_loss_args: options of the scale, as a dict or as keywords; see `LossScale`.

    Raises: RuntimeError if there is no DistributedModel yet; ValueError for parameters that are not the model's, or an
        unknown option of the scale.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        static_loss_scale: float | None = 1.0,
        dynamic_loss_scale: bool = False,
        dynamic_loss_args: dict[str, Any] | None = None,
        **scale_arguments: Any,
    ) -> None:
        # torch's constructor is not called: groups and state are properties that read the inner optimizer.
        now = runtime.current()
        if now.model is None:
            raise RuntimeError("DistributedOptimizer: make the DistributedModel first")
        given = [one for group in optimizer.param_groups for one in group["params"]]
        check_parameters(type(optimizer).__name__, given, now.model)
        self._runtime = now
        self.optimizer = optimizer
        self.overflow = False
        self.stepper: Stepper | None = None  # set once modules are placed
        self._scale = LossScale.make(
            static_loss_scale, dynamic_loss_scale, {**(dynamic_loss_args or {}), **scale_arguments}
        )
        self._stored: dict[str, Any] | None = None  # a state to load once modules are placed
        self._numbering = Numbering(optimizer, now.model)
        now.optimizer = self
        if now.model.partitioned:
            self._on_partition()
        else:
            now.model.partition_hooks.add(lambda _model, _optimizer: self._on_partition())

    # Attributes that schedulers and scripts read.

    # False even if the inner optimizer's is True, or torch would set the scale on this object
    _step_supports_amp_scaling = False

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of the inner optimizer."""
        groups: list[dict[str, Any]] = self.optimizer.param_groups
        return groups

    @property
    def state(self) -> Any:
        """The state of the inner optimizer."""
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:
        """The defaults of the inner optimizer."""
        defaults: dict[str, Any] = self.optimizer.defaults
        return defaults

    @property
    def loss_scale(self) -> float:
        """The current factor of losses; 1 without fp16."""
        return self._scale.value if self._runtime.configuration.fp16 else 1.0

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters of this rank.

        With fp16, and with bf16 unless a key shards parameters or optimizer state, the update is skipped if a gradient
        on any rank is not finite.

        Args:
            closure: called first, with gradients enabled.

        Raises: RuntimeError before the first step of a pipeline; ParallelError if no backward pass has run, or losses
            are scaled for another optimizer.
        """
        if self._runtime.optimizer is not self and self._runtime.configuration.fp16:
            raise ParallelError(
                "a DistributedOptimizer was made after this one, and with fp16, losses are scaled for only "
                "one optimizer: make one optimizer of all parameters, in groups"
            )
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        stepper = self.reduce_gradients()
        with stepping():
            self.overflow = not stepper.step(self.loss_scale)
        self._runtime.model.count_step()
        if self._runtime.configuration.fp16:
            self._scale.update(self.overflow)
        return result

    def zero_grad(self, set_to_none: bool = True, *, set_grads_to_None: bool | None = None) -> None:
        """Clear all gradients.

        Args:
            set_grads_to_None: the name of `set_to_none` in scripts of SMP before 1.10.
        """
        set_to_none = set_to_none if set_grads_to_None is None else set_grads_to_None
        if self.stepper is None:
            self.optimizer.zero_grad(set_to_none=set_to_none)
        else:
            self.stepper.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters of the model to the inner optimizer, before or between steps.

        Args:
            param_group: as torch's optimizers take it.

        Raises: ValueError for parameters that are not the model's, or are in a group already; ParallelError if
            parameters or optimizer state are sharded already, as they are from the start, or with a pipeline from
            the first step.
        """
        params = param_group["params"]
        if not isinstance(params, set):  # which torch refuses, since sets have no order
            params = param_group["params"] = [params] if isinstance(params, torch.Tensor) else list(params)
        given = [one[1] if isinstance(one, tuple) else one for one in params]  # torch takes (name, parameter), too
        kind = type(self.optimizer).__name__
        check_parameters(kind, given, self._runtime.model)
        if self._numbering.has_any(given):
            raise ValueError(
                f"add_param_group: some of the {len(given)} parameters for {kind} are in a group already: add each "
                "parameter once, and change the options of its group in param_groups"
            )

        def add() -> None:
            self.optimizer.add_param_group(param_group)
            self._numbering.take_new_groups()  # now, since the stepper may replace parameters by masters

        if self.stepper is None:
            add()
        else:
            self.stepper.add_group(add)

    def clip_master_grads(self, max_norm: float) -> float:
        """Clip gradients by the norm of the whole model; return the norm before, as `Stepper.clip`. All ranks call it.

        Shards are clipped in the next step, to the smaller of `max_norm` and `sdp_gradient_clipping`.
        """
        return self.reduce_gradients().clip(max_norm, self.loss_scale)

    def reduce_gradients(self) -> Stepper:
        """Average gradients that are not averaged yet, before clipping, unscaling or a step. All ranks call it.

        Raises: RuntimeError before the first step of a pipeline; ParallelError if no backward pass has run.
        """
        if self.stepper is None:
            raise RuntimeError(
                "modules have no ranks and no gradients yet: call the function that is decorated with smp.step first"
            )
        have_gradients = self._runtime.model.settle_gradients()
        self.stepper.prepare()
        self._runtime.model.check_backward(have_gradients=have_gradients or self.stepper.have_gradients)
        return self.stepper

    # Numbers of parameters, under the method names that scripts call.

    redefined_params = False  # the model's `virtual_named_parameters` are its own parameters

    def _param_id_to_index(self) -> dict[int, int]:
        return self._numbering.by_id()

    def _param_index_to_param_local(self) -> dict[int, torch.nn.Parameter]:
        return self._numbering.local()

    def param_name_to_index(self) -> dict[str, int]:
        """Return the numbers of parameters in states, by names of the model's `named_parameters`."""
        return self._numbering.by_name()

    @property
    def master_distribution_axis(self) -> dict[int, int | None]:
        """The dimension along which tensor ranks hold slices, by `id` of the stepped tensor; None without slices."""
        own: dict[int, int | None] | None = getattr(self.optimizer, "master_distribution_axis", None)
        return self._numbering.axes() if own is None else own

    # States.

    def local_state_dict(self, gather_if_shard: bool | None = None) -> dict[str, Any]:
        """Return this rank's part of the state, marked as partial.

        Args:
            gather_if_shard: without effect, since shards are never gathered; if there are shards, True logs a warning.
        """
        keys = self._runtime.configuration
        if gather_if_shard and (keys.shard_optimizer_state or keys.sharded_data_parallel_degree > 1):
            _LOG.warning("gather_if_shard=True has no effect: shards of an optimizer's state stay apart, one a rank")
        return {**self._placed().local_state(), **self._scale_state(), IS_PARTIAL: True}

    def state_dict(self) -> dict[str, Any]:
        """Gather the state of all parameters from the ranks of one model. All these ranks call it.

        Before the first step of a pipeline, a state that waits for it counts as loaded.

        Raises: RuntimeError if state of slices, or state that is spread over replicas, has no whole form, or waits.
        """
        if self.stepper is None:
            own = self.optimizer.state_dict()
            if self._stored is not None:
                own = whole_of_optimizer(self._stored, own["param_groups"], self._runtime)
            return {**own, **self._scale_state()}
        return {**self.stepper.full_state(), **self._scale_state()}

    def load_state_dict(self, state_dict: dict[str, Any], gather_if_shard: bool = True) -> None:
        """Load a local or full state; values by parameter are loaded as soon as modules are placed.

        Options of groups and the loss scale are loaded at once.

        Args:
            gather_if_shard: without effect; the state itself records whether it is one rank's shard.

        Raises: ValueError if the state has other groups of parameters, or is another rank's shard.
        """
        if self.stepper is None:
            if state_dict.get("state") or set(state_dict) - {"state", "param_groups"}:
                load_options(state_dict, self.param_groups)
                self.load_scale(state_dict)
                self._stored = {name: value for name, value in state_dict.items() if name != _SCALE}
            else:  # the state holds only options of groups
                self.optimizer.load_state_dict({name: state_dict[name] for name in ("state", "param_groups")})
                self._stored = None
            return
        found = {name: value for name, value in state_dict.items() if name not in (IS_PARTIAL, _SCALE)}
        self.stepper.load(found)
        self.load_scale(state_dict)

    def load_scale(self, state_dict: dict[str, Any]) -> None:
        """Load the loss scale alone, if the state has one."""
        if _SCALE in state_dict:
            self._scale.load(state_dict[_SCALE])

    def save_optimizer_backcompat(self, gather_if_shard: bool | None = None) -> dict[str, Any]:
        """Return `local_state_dict`, for scripts of SMP before 1.10."""
        return self.local_state_dict(gather_if_shard)

    def load_optimizer_backcompat(self, state_dict: dict[str, Any], gather_if_shard: bool = True) -> None:
        """Load a state of `save_optimizer_backcompat`, with or without gathered shards."""
        self.load_state_dict(state_dict)

    @property
    def _global_grad_norm(self) -> float | None:
        """The norm of the last step's gradients, as scripts read it; None without sharded data parallelism."""
        return getattr(getattr(self.stepper, "inner", None), "gradient_norm", None)

    def __getattr__(self, name: str) -> Any:
        if name in ("optimizer", "stepper", "_numbering"):
            raise AttributeError(name)
        if name in (names := getattr(self.stepper, "deepspeed_names", {})):
            return names[name]
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self.optimizer!r})"

    def _on_partition(self) -> None:
        self.stepper = make_stepper(self.optimizer, self._runtime)
        if self._stored is not None:
            stored, self._stored = self._stored, None
            self.load_state_dict(with_options(stored, self.optimizer.state_dict()["param_groups"]))

    def _placed(self) -> Stepper:
        if self.stepper is None:
            raise RuntimeError("the optimizer has no state yet: modules have no ranks before the first step")
        return self.stepper

    def _scale_state(self) -> dict[str, Any]:
        return {_SCALE: self._scale.state()} if self._runtime.configuration.fp16 else {}
