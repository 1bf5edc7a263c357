"""`DistributedModel`: a model that is spread over ranks and that scripts use like a local model.

Where: scripts wrap their model in it once, after `runtime.initialize`; `step` runs steps through it, and `optimizer`
gets this rank's parameters from it.

[Note: when] Without a pipeline the constructor places all parameters and makes replicas equal. With a pipeline the
first step does so. Unless tracing is off, its function first runs once on the first microbatch, to measure modules.
Then rank 0 cuts the model (`partition.plan`) and sends the plan to all ranks. Calls of remote modules are redirected
(`partition.placement`), and parameters of other ranks are released.

[Note: scale] The gradient of a step is the mean over its microbatches unless `average_grads_across_microbatches` is
off: the initial gradient of every backward pass is divided by the number of microbatches. Scripts without a pipeline
and without fp16 may call `loss.backward()` themselves; then gradients are divided as they are computed. With a
communication hook nothing is divided: the documentation asks the hook to average over microbatches, too.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch

from clary.train.collective.bootstrap.hosts import host_name
from clary.train.collective.settings import CollectiveSettings
from clary.train.parallel import runtime
from clary.train.parallel.errors import ParallelError
from clary.train.parallel.hooks import Handle, Hooks
from clary.train.parallel.layout.mesh import Along
from clary.train.parallel.memory.checkpointing import use_offloader, use_placement
from clary.train.parallel.memory.delayed import materialize
from clary.train.parallel.memory.offloading import Offloader
from clary.train.parallel.mistakes import clipping, scaling
from clary.train.parallel.mistakes.alike import check_inputs, check_models, tell_own_parts
from clary.train.parallel.mistakes.parts import refuse_states
from clary.train.parallel.misuse import (
    OptimizerWatch,
    Passes,
    check_tensor_degree,
    refuse_other_wrappers,
)
from clary.train.parallel.partition.decision import decide
from clary.train.parallel.partition.placement import (
    checkpointing_placement,
    describe,
    finder,
    install,
    owners_of,
    release_others,
)
from clary.train.parallel.pipeline.connection import open_server
from clary.train.parallel.pipeline.messages import Message, Subject, map_leaves
from clary.train.parallel.pipeline.remote import Host
from clary.train.parallel.pipeline.server import Server
from clary.train.parallel.reduce.ordered import backward_of
from clary.train.parallel.reducing_model import ReducingModel, seeded_backward
from clary.train.parallel.sharded.build import shard_model
from clary.train.parallel.sharded.deepspeed_names import name_parts
from clary.train.parallel.sharded.groups import make_sharding_groups
from clary.train.parallel.sharded.model import ShardedModel
from clary.train.parallel.sharded.settings import settings_of
from clary.train.parallel.step import Microbatch, microbatch
from clary.train.parallel.tensor.replacement import replace_modules

OFFLOAD_VARIABLE = "CLARY_PARALLEL_OFFLOAD_FOLDER"  # folder of offloaded activations; host memory if not set
_MEBIBYTE = 1 << 20


class DistributedModel(ReducingModel):
    """Wraps the only model of a program.

    Args:
        module: the whole model, the same on all ranks.
        trace_device: device that traces the first microbatch: gpu means the rank's own device, even if it is not a GPU;
            cpu leaves the model where it is.
        trace_execution_times: cut by measured seconds instead of counted operations.
        overlapping_allreduce: average gradients in buckets during the backward pass instead of after it.
        backward_passes_per_step: number of steps with a backward pass per reduction of gradients.
        average_grads_across_microbatches: see [Note: scale].
        bucket_cap_mb: size of a bucket of gradients that are averaged together, in MiB.
        broadcast_buffers: whether replicas take the first one's persistent buffers, such as running means, before the
            next step.

    Other arguments are accepted from scripts and have no effect.
    Raises: RuntimeError if the program already has a DistributedModel, or before `runtime.initialize`; ValueError for
        an argument out of range, or a model that is unsupported or differs between ranks.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        trace_device: str = "gpu",
        trace_execution_times: bool = False,
        overlapping_allreduce: bool = True,
        backward_passes_per_step: int = 1,
        average_grads_across_microbatches: bool = True,
        bucket_cap_mb: float = 25,
        trace_memory_usage: bool = False,
        broadcast_buffers: bool = True,
        gradient_as_bucket_view: bool = False,
        find_unused_parameters: bool = False,
    ) -> None:
        now = runtime.current()
        if now.model is not None:
            raise RuntimeError("there is a DistributedModel already; a program has one")
        if trace_device not in ("gpu", "cpu"):
            raise ValueError(f"trace_device is {trace_device!r}; expected gpu or cpu")
        if backward_passes_per_step < 1:
            raise ValueError(f"backward_passes_per_step is {backward_passes_per_step}; expected 1 or more")
        refuse_other_wrappers(module)
        check_models(module, now.groups)
        clipping.install()
        scaling.install()
        replaced = replace_modules(module)
        super().__init__(
            replaced.root,
            now,
            averages=average_grads_across_microbatches,
            passes_per_step=backward_passes_per_step,
            bucket_bytes=int(bucket_cap_mb * _MEBIBYTE),
            overlaps=overlapping_allreduce,
            shares_buffers=broadcast_buffers,
        )
        # Weak references: if the root was replaced, only the script may hold the old root.
        self.originals = (weakref.ref(module), weakref.ref(replaced.root))
        self.translations = replaced.translations  # translations of states to the names of replaced modules and back
        if now.rank == 0 and replaced.changes:
            print(replaced, flush=True)
        configuration = now.configuration
        check_tensor_degree(
            self.inner, configuration.tensor_parallel_degree, [str(change) for change in replaced.changes]
        )
        for one in replaced.originals():
            one.register_forward_pre_hook(_refuse_replaced)
        self._num_parts = configuration.partitions
        # Dtype of parameters; None does not change them.
        self.dtype = torch.float16 if configuration.fp16 else torch.bfloat16 if configuration.bf16 else None
        if self.dtype is not None and not self._is_sharded:
            self.inner.to(self.dtype)
        self._measures_times = trace_execution_times
        self._traces_on_device = trace_device == "gpu"
        self._stored_owners: dict[str, int] = {}  # owners of modules in an earlier program
        self._server: Server | None = None
        self._host: Host | None = None
        self._offloader: Offloader | None = None
        self.step_hooks = Hooks()
        self._optimizer_watch = OptimizerWatch(self)
        self._has_checked_inputs = False
        self._runtime.model = self
        if self._num_parts == 1:
            self._place({name: 0 for name, _ in self.inner.named_modules()})

    # Methods that scripts call.

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model.

        Raises: ParallelError if the model lies on several ranks and no step is running.
        """
        if self._num_parts > 1 and microbatch() is None:
            raise ParallelError(
                "the model lies on several pipeline ranks: call it inside a function decorated with smp.step"
            )
        if microbatch() is None:
            self.follow_changes()
        self._goes.called = True
        if self.training and torch.is_grad_enabled():
            self._goes.forward = True
        if self.dtype is None:
            return self.inner(*args, **kwargs)
        args, kwargs = _cast_floats((args, kwargs), self.dtype)
        return _cast_floats(self.inner(*args, **kwargs), torch.float32)

    def backward(self, tensors: Any, grad_tensors: Any = None) -> None:
        """Compute gradients, as `torch.autograd.backward` does, on all ranks that hold a part of the model.

        Args:
            tensors: one tensor, or several; usually the loss of a microbatch.
            grad_tensors: gradients of `tensors`; None for scalars.

        Raises: ParallelError if the model lies on several ranks and no step is running.
        """
        one = microbatch()
        if one is not None and one.is_traced:
            return
        if one is None and self._num_parts > 1:
            raise ParallelError(
                "backward was called outside of a step: call it inside a function decorated with smp.step"
            )
        self._goes.backward = True
        outputs = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        given = [None] * len(outputs) if grad_tensors is None else grad_tensors
        given = [given] if isinstance(given, torch.Tensor) else list(given)
        scale = self._seed_scale(one)
        seeds = [self._seed(output, grad, scale) for output, grad in zip(outputs, given, strict=True)]
        if self._server is not None:
            self._server.enter_backward()
        if self._offloader is not None and one is not None:
            self._offloader.expect(one.number)
        with seeded_backward(), torch.autograd.set_multithreading_enabled(False):
            torch.autograd.backward(outputs, seeds)  # may wait for other ranks

    def get_module(self) -> torch.nn.Module:
        """Return the wrapped model."""
        return self.inner

    def register_post_partition_hook(self, hook: Callable[..., Any]) -> Handle:
        """Call `hook(model, optimizer)` as soon as modules are placed, or at once if they are."""
        handle = self.partition_hooks.add(hook)
        if self.partitioned:
            self.partition_hooks.call_once(self, self._runtime.optimizer)
        return handle

    def register_post_step_hook(self, hook: Callable[..., Any]) -> Handle:
        """Call `hook(model, optimizer)` once, after the next step; transformers' hook loads the optimizer's state."""
        return self.step_hooks.add(hook)

    def close(self) -> None:
        """Close streams, end offloading and release the parameters; the model is unusable afterwards.

        Torch's C++ code holds the hooks, out of reach of Python's garbage collector: they would keep the model alive.
        """
        for follower in (*self._hook_handles, self._ordered, self._reducer):
            if follower is not None:
                follower.remove()
        if self._server is not None:
            self._server.close()
        if self._offloader is not None:
            use_offloader(None)
            self._offloader.close()
        use_placement(None)
        self._optimizer_watch.close()

    def place_as(self, owners: Mapping[str, int]) -> None:
        """Make the first step place modules as in an earlier program, without a trace.

        Raises: ValueError if modules are placed differently already, or the earlier program had other modules.
        """
        if self.partitioned:
            if self._owners != dict(owners):
                raise ValueError("modules are already placed differently: resume before the first step")
            return
        if set(owners) != {name for name, _ in self.inner.named_modules()}:
            raise ValueError("the earlier program's model has other modules than this one")
        self._stored_owners = dict(owners)

    # Methods that `step` and the optimizer call.

    def check_first_inputs(self, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Check, before the first step, that ranks which work on one batch got equal inputs. All ranks call it.

        Args:
            function: the step's function.
            args: positional arguments of its call.
            kwargs: keyword arguments of its call.

        Raises: ValueError naming an argument that differs within a tensor group.
        """
        if not self._has_checked_inputs:
            self._has_checked_inputs = True
            check_inputs(function, args, kwargs, self._runtime)
            tell_own_parts(self.own_parts(), self._runtime)

    def run_step(self, body: Callable[..., Any], total: int) -> list[Any]:
        """Run the step's function for every microbatch; return its results on all ranks.

        Args:
            body: the step's function of a microbatch's number and `is_traced`.
        """
        if not self.partitioned:
            if self._traces_on_device and not any(one.is_meta for one in self.inner.parameters()):
                self.inner.to(self._runtime.device)
            self._place(self._stored_owners or self._decide(lambda: body(0, is_traced=True)))
        self.follow_changes()
        with self._gradients_followed():
            if self._server is None:
                results = [self._run_body(body, number, total) for number in range(total)]
            else:
                assert self._host is not None
                bodies = [partial(self._run_and_tell, body, number, total) for number in range(total)]
                told = self._server.run(bodies if self._runtime.pipeline_rank == 0 else None)
                self._host.forget()
                results = [result for result, _ in told]
                self._goes = told[-1][1]
        self.step_hooks.call_once(self, self._runtime.optimizer)
        return results

    # Placement.

    def _decide(self, run: Callable[[], Any]) -> dict[str, int]:
        parts = decide(self.inner, self._runtime, run, measures_times=self._measures_times)
        return owners_of(describe(self.inner), parts)

    def _place(self, owners: dict[str, int]) -> None:
        self._owners, self.partitioned = owners, True
        now = self._runtime
        if self._num_parts > 1:
            self._host = Host(finder(self.inner), now.device)
            self._server = self._host.server = open_server(now, self._serve)
            install(self.inner, owners, now.pipeline_rank, self._host)
            release_others(self.inner, owners, now.pipeline_rank)
            is_manual = not now.configuration.auto_partition
            use_placement(
                checkpointing_placement(self.inner, owners, now.pipeline_rank, self._host, is_manual=is_manual)
            )
        if now.configuration.offload_activations:
            folder = os.environ.get(OFFLOAD_VARIABLE)
            self._offloader = Offloader(
                Path(folder) if folder else None, horizon=now.configuration.activation_loading_horizon
            )
            use_offloader(self._offloader)
        local = set(self.local_modules())
        materialize(self.inner, now.device, only=lambda module: module in local)
        for module in self.local_modules():
            _move_own(module, now.device)
        if self._is_sharded:
            self.sharded = self._shard()
        self._follow_gradients()
        self._parts_handles = refuse_states(self._partial_modules())
        self.load_stored_states()
        self.partition_hooks.call_once(self, now.optimizer)

    def _shard(self) -> ShardedModel:
        now = self._runtime
        configuration = now.configuration
        groups = make_sharding_groups(
            now.groups.process_group(Along.RDP),
            configuration.sharded_data_parallel_degree,
            hierarchical=configuration.sdp_hierarchical_allgather,
            host=host_name(CollectiveSettings.from_environment(os.environ)),
            timeout=timedelta(seconds=now.timeout_s),
        )
        sharded = shard_model(self.inner, groups, settings_of(configuration))
        name_parts(sharded)
        return sharded

    def _run_body(self, body: Callable[..., Any], number: int, total: int) -> Any:
        if self.sharded is not None and number == total - 1 and self._num_passes == self._passes_per_step - 1:
            self.sharded.expect_last_backward()
        with self._lane(number), backward_of((number, -1, 0)):
            return body(number)

    def _run_and_tell(self, body: Callable[..., Any], number: int, total: int) -> tuple[Any, Passes]:
        """Return the result of a microbatch and the passes that have begun, which the server sends to other ranks."""
        return self._run_body(body, number, total), self._goes

    def _serve(self, message: Message) -> Message:
        """Serve a request of another rank and return the answer."""
        assert self._host is not None
        assert message.call is not None
        if self._offloader is not None and message.subject is Subject.BACKWARD:
            self._offloader.expect(message.call.microbatch)
        call = message.call
        with self._lane(call.microbatch), backward_of((call.microbatch, call.caller, call.number)):
            return self._host.serve(message)

    def _lane(self, number: int) -> contextlib.AbstractContextManager[None]:
        """Assign tensors that are offloaded in this block to the backward pass of microbatch `number`."""
        return contextlib.nullcontext() if self._offloader is None else self._offloader.lane(number)

    def _seed_scale(self, one: Microbatch | None) -> float:
        scale = 1 / one.total if one is not None and self._divides else 1.0
        optimizer = self._runtime.optimizer
        return scale * (optimizer.loss_scale if optimizer is not None else 1.0)

    @staticmethod
    def _seed(output: torch.Tensor, grad: torch.Tensor | None, scale: float) -> torch.Tensor:
        if grad is None:
            if output.numel() != 1:
                raise ValueError(f"backward from a tensor of shape {tuple(output.shape)} needs grad_tensors")
            return torch.full_like(output, scale)
        return grad * scale if scale != 1.0 else grad


def _cast_floats(value: Any, dtype: torch.dtype) -> Any:
    """Return nested values with every tensor of a floating-point dtype cast to `dtype`; other leaves are unchanged."""

    def cast(leaf: Any) -> Any:
        return leaf.to(dtype) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf

    return map_leaves(value, cast)


def _refuse_replaced(module: torch.nn.Module, _args: Any) -> None:
    """Refuse a call of a replaced module in a step: it would train a copy that is never saved."""
    if microbatch() is not None:
        raise ParallelError(
            f"a {type(module).__name__} that tensor parallelism has replaced was called in a step: call "
            "the DistributedModel, or take the module from its get_module()"
        )


def _move_own(module: torch.nn.Module, device: torch.device) -> None:
    """Move a module's own parameters and buffers, not those of its children, to a device."""
    for parameter in module.parameters(recurse=False):
        parameter.data = parameter.data.to(device)
    for name, buffer in module.named_buffers(recurse=False):
        module._buffers[name] = buffer.to(device)
