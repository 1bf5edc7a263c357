"""Fits the buckets of a DistributedDataParallel to its model and its network.

Where: a script, or DistributedDataParallel of `smdistributed.dataparallel`, calls `tune_buckets(ddp)` once, before
training. Then some steps of training are measured: when each gradient is ready, and how long reductions take.
`collective.buckets` makes a plan from that, and the model gets a new reducer for the rest of training. All ranks plan
from the same numbers, the slowest rank's, so they agree.

torch has no public interface for this. This module therefore sets the caps and calls `_ddp_init_helper`, as torch
itself does after unpickling (torch 2.6 to 2.13). Since 2.13, torch takes a list of caps, and so an exact plan. Earlier
versions take one cap for the first bucket and one for all others.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from clary.train.collective.buckets import CommunicationCost, Gradient, plan_buckets, plan_caps

SETTLING_STEPS = 2  # torch itself rebuilds buckets after the first
MEASURED_STEPS = 3
_SMALL_BYTES = 4096
_LARGE_BYTES = 1 << 20  # largest sample that measures the rate; a burst is no larger than the model
_BURST = 4
_NUM_SAMPLES = 5
_FLOAT_BYTES = 4
_LEAST_S = 1e-9  # least difference between the times of the two samples, in case noise reversed them


class BucketTuning:
    """The tuning of one model's buckets by `tune_buckets`, under way or decided.

    `outcome` is None until the decision, then one sentence: the plan, or why buckets stay unchanged. `caps` are then
    the sizes at which buckets close, in bytes, in the order in which gradients become ready, or None.
    """

    def __init__(self, model: DistributedDataParallel, num_steps: int) -> None:
        self.outcome: str | None = None
        self.caps: list[int] | None = None
        self._model = model
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._num_left = SETTLING_STEPS + num_steps
        self._began_s = 0.0
        self._ready_s: dict[int, float] = {}  # by index of the parameter, of the step under way
        self._steps: list[dict[int, float]] = []
        self._handles: list[Any] = []

    def begin(self) -> None:
        """Watch the model from its next step on."""
        self._handles = [
            self._model.register_forward_pre_hook(self._before_forward),
            self._model.register_forward_hook(self._after_forward),
            *(
                parameter.register_post_accumulate_grad_hook(self._noter(index))
                for index, parameter in enumerate(self._parameters)
            ),
        ]

    def give_up(self, reason: str) -> None:
        """Leave buckets unchanged."""
        self.outcome = f"buckets stay as they were: {reason}"
        self._end()

    def _before_forward(self, model: Any, _: Any) -> None:
        if not torch.is_grad_enabled():
            return
        self._take_step()
        if self._num_left > 0:
            return
        obstacle = _obstacle(self._model)
        if obstacle is None:
            self._rebuild()
        else:
            self.give_up(obstacle)

    def _after_forward(self, model: Any, _: Any, output: Any) -> None:
        self._ready_s = {}
        self._began_s = time.perf_counter()

    def _noter(self, index: int) -> Callable[[torch.Tensor], None]:
        def note(_: torch.Tensor) -> None:
            if self._model.require_backward_grad_sync:
                self._ready_s[index] = time.perf_counter() - self._began_s

        return note

    def _take_step(self) -> None:
        """Keep the times of the last step, if its gradients were reduced."""
        if self._ready_s:
            self._num_left -= 1
            self._steps.append(self._ready_s)
            self._ready_s = {}

    def _rebuild(self) -> None:
        self._end()
        times = torch.tensor(self._times(), dtype=torch.float64)
        dist.all_reduce(times, op=dist.ReduceOp.MAX, group=self._model.process_group)
        slowest = times.tolist()
        cost = _measure_cost(self._model.process_group, sum(map(_num_bytes, self._parameters)))
        ready = sorted(zip(slowest, range(len(slowest)), strict=True))
        gradients = [Gradient(_num_bytes(self._parameters[index]), ready_s) for ready_s, index in ready]
        plan = plan_buckets(gradients, cost)
        # A bucket closes when it reaches its cap: caps of the plan's sizes give the plan's buckets.
        self.caps = list(plan.sizes) if _takes_list(self._model) else list(plan_caps(gradients, cost))
        set_bucket_caps(self._model, self.caps)
        self.outcome = plan.reason

    def _times(self) -> list[float]:
        """Return when each gradient was ready: the median of the measured steps.

        A gradient without times gets the largest of the steps' median times.
        """
        measured = self._steps[SETTLING_STEPS:]
        last_s = max(statistics.median(step.values()) for step in measured)
        return [
            statistics.median([step[index] for step in measured if index in step] or [last_s])
            for index in range(len(self._parameters))
        ]

    def _end(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []


def tune_buckets(model: DistributedDataParallel, *, num_steps: int = MEASURED_STEPS) -> BucketTuning:
    """Fit the buckets of `model` to measured times of its first steps. Call it on every rank, before the first step.

    After SETTLING_STEPS and `num_steps` steps the next forward pass takes longer, because all ranks together measure
    some reductions. Results of training change only by the order in which gradients are added.

    Some models keep their buckets: in a group of one rank; with a communication hook, because its state may depend on
    buckets; without torch's own reducer; with find_unused_parameters, because torch fixes buckets before it knows the
    order; on a GPU, because the host does not know when a gradient is ready; with sparse gradients; and inside `join`.

    Returns: an object whose `outcome` later has the result.
    Raises: ValueError if `num_steps` is below 1.
    """
    if num_steps < 1:
        raise ValueError(f"tune_buckets: num_steps must be 1 or more, got {num_steps}")
    tuning = BucketTuning(model, num_steps)
    obstacle = _obstacle(model)
    if obstacle is None:
        tuning.begin()
    else:
        tuning.give_up(obstacle)
    return tuning


def set_bucket_caps(model: DistributedDataParallel, caps: list[int]) -> None:
    """Give the model a reducer whose buckets close at these sizes, as its __setstate__ does.

    Do not call it during a step.

    The old reducer is freed when the model drops it, and removes its hooks from the parameters then.

    Args:
        caps: in bytes, in the order in which gradients become ready; the last applies to all that follow. Before torch
            2.13 only the first and the last apply.
    Raises: ValueError if a communication hook is registered: it would be lost with the old reducer.
    """
    if _has_hook(model):
        raise ValueError("buckets cannot be set once a communication hook is registered; set them first")
    parameters, expects_sparse = model._build_params_for_reducer()
    names = model._build_debug_param_to_name_mapping(parameters)
    model.bucket_bytes_cap = max(caps)
    first_bytes = dist._DEFAULT_FIRST_BUCKET_BYTES
    if _takes_list(model):
        model._bucket_config = replace(
            model._bucket_config,
            bucket_bytes_cap=max(caps),
            per_bucket_bytes_caps=tuple(caps),
            first_bucket_bytes_cap=caps[0],
        )
        model.bucket_bytes_cap_list = list(caps)
    else:  # before torch 2.13
        first_bytes, model.bucket_bytes_cap, model.bucket_bytes_cap_default = caps[0], caps[-1], True
    default_bytes, dist._DEFAULT_FIRST_BUCKET_BYTES = dist._DEFAULT_FIRST_BUCKET_BYTES, first_bytes
    try:
        model._ddp_init_helper(parameters, expects_sparse, names, model.static_graph)
    finally:
        dist._DEFAULT_FIRST_BUCKET_BYTES = default_bytes
    if model.static_graph:
        model._static_graph_delay_allreduce_enqueued = False  # a reducer's first step with a static graph reduces late
        model.reducer._set_static_graph()
        model.logger._set_static_graph()


def _obstacle(model: DistributedDataParallel) -> str | None:
    """Return why this model's buckets cannot be set; the same on all ranks."""
    if model.process_group.size() == 1:
        return "there is one rank"
    if _has_hook(model):
        return "a communication hook is registered, whose state may depend on buckets"
    if model.find_unused_parameters:
        return "find_unused_parameters keeps torch from ordering buckets as gradients become ready"
    if model._use_python_reducer or model._delay_all_reduce_params:
        return "gradients are reduced by another way than torch's reducer"
    if any(parameter.device.type != "cpu" for parameter in model.parameters()):
        return "the model is not on the CPU: the host does not know when a gradient is ready"
    if any(expected for expected in model._build_params_for_reducer()[1]):
        return "gradients are sparse"
    if model._join_config.enable:
        return "ranks may leave the loop early (join)"
    return None


def _has_hook(model: DistributedDataParallel) -> bool:
    return bool(getattr(model, "_comm_hooks", None) or model._get_ddp_logging_data().get("comm_hook"))


def _takes_list(model: DistributedDataParallel) -> bool:
    return hasattr(getattr(model, "_bucket_config", None), "per_bucket_bytes_caps")


def _measure_cost(group: Any, model_bytes: int) -> CommunicationCost:
    """Measure copies, and reductions of two sizes in bursts as on a busy network; the slowest rank counts.

    Copies are timed as a step makes them, directly after a reduction: neither buffer is then in the cache of this CPU
    core.
    """
    sizes = (_SMALL_BYTES, max(min(_LARGE_BYTES, model_bytes // _BURST), 2 * _SMALL_BYTES))
    medians: list[float] = []
    copies: list[float] = []
    for num_bytes in sizes:
        burst = [torch.zeros(num_bytes // _FLOAT_BYTES) for _ in range(_BURST)]
        gradients = [torch.ones(num_bytes // _FLOAT_BYTES) for _ in range(_BURST)]
        taken, copies = [], []
        for _ in range(_NUM_SAMPLES):
            dist.barrier(group=group)
            began = time.perf_counter()
            futures = [dist.all_reduce(values, group=group, async_op=True).get_future() for values in burst]
            for future in futures:
                future.wait()
            taken.append((time.perf_counter() - began) / _BURST)
            began = time.perf_counter()
            for gradient, values in zip(gradients, burst, strict=True):
                gradient.copy_(values)
            copies.append((time.perf_counter() - began) / _BURST)
        medians.append(statistics.median(taken))
    seconds = torch.tensor([*medians, statistics.median(copies)], dtype=torch.float64)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX, group=group)
    small_s, large_s, copy_s = seconds.tolist()
    # A burst takes either one latency plus the time of all its buckets on the wire, or one latency per bucket plus the
    # time of one bucket on the wire.
    wire_s = min(large_s - small_s / _BURST, _BURST * (large_s - small_s))
    rate = sizes[1] / max(wire_s, _LEAST_S)
    return CommunicationCost(small_s, rate, sizes[1] / max(copy_s, _LEAST_S))


def _num_bytes(parameter: torch.Tensor) -> int:
    return int(parameter.numel() * parameter.element_size())
