"""The state of a model that is spread over ranks: this rank's part, or the whole state.

Where: base class of `DistributedModel`; `checkpoint.folders` calls it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from clary.train.parallel.checkpoint.model_state import (
    IS_PARTIAL,
    SLICES,
    State,
    cut_whole,
    full_state,
    load_full,
    load_part,
    local_state,
    slices_of,
)
from clary.train.parallel.checkpoint.waiting import whole_of_model
from clary.train.parallel.hooks import Hooks
from clary.train.parallel.layout.mesh import Along
from clary.train.parallel.placed_model import PlacedModel
from clary.train.parallel.runtime import Runtime
from clary.train.parallel.sharded.model import ShardedModel
from clary.train.parallel.sharded.state import (
    full_model_state,
    load_full_model_state,
    load_local_model_state,
    local_model_state,
)

if TYPE_CHECKING:
    from typing_extensions import Self  # `typing` has it since Python 3.11


class StatefulModel(PlacedModel):
    """Saves and loads the state of a model.

    Args:
        module: the wrapped model.
    """

    def __init__(self, module: torch.nn.Module, runtime: Runtime) -> None:
        super().__init__(module, runtime)
        self.sharded: ShardedModel | None = None
        self.tensor_slices = slices_of(self.inner)
        self.partition_hooks = Hooks()
        self._stored_states: list[tuple[State, bool, bool]] = []
        self._parts_handles: list[Any] = []  # hooks that refuse `state_dict` of parts, see `mistakes.parts`

    def local_state_dict(self, *_args: Any, **_kwargs: Any) -> State:
        """Return this rank's part of the state, marked as partial. Raises: RuntimeError."""
        if not self.partitioned:
            raise RuntimeError("local_state_dict: modules have no ranks yet; the first step places them")
        if self.sharded is not None:
            return {**local_model_state(self.sharded), IS_PARTIAL: True}
        return local_state(self.inner, self._owners, self._runtime.pipeline_rank)

    def state_dict(self, *args: Any, gather_to_rank0: bool = False, **kwargs: Any) -> State:
        """Return the state of the whole model, under the wrapped model's names. All ranks of a model call it.

        Before the first step of a pipeline, states that wait for it count as loaded.

        Args:
            gather_to_rank0: whether the first rank of each model alone returns the state; other ranks return {}.

        Raises: RuntimeError if a waiting state does not fit the model.
        """
        is_whole = self._runtime.mesh.degree(Along.MP) == 1
        if self.sharded is not None:
            part = full_model_state(self.sharded, to_rank0=gather_to_rank0 and is_whole)
            return part if is_whole else self._gather(part, gather_to_rank0)
        if is_whole or not self.partitioned:
            if is_whole or not (self._stored_states or self.tensor_slices):
                found: State = self.inner.state_dict(*args, **kwargs)
            else:
                found = whole_of_model(self.inner, self._stored_states, self.tensor_slices, self._runtime)
            return {} if gather_to_rank0 and self._runtime.groups.group_rank(Along.MP) != 0 else found
        return full_state(self.local_state_dict(), self._runtime, to_first_only=gather_to_rank0)

    def _gather(self, part: State, to_first_only: bool) -> State:
        part = {**part, SLICES: {name: cut for name, cut in self.tensor_slices.items() if name in part}}
        return full_state(part, self._runtime, to_first_only=to_first_only)

    def load_state_dict(self, state_dict: State, strict: bool = True, same_partition_load: bool = False) -> Any:
        """Load a whole state, or this rank's part, at once or as soon as modules are placed.

        Args:
            same_partition_load: whether a part comes from the same partition; else parts are first gathered from all
                ranks, so all ranks must call it.

        Raises: RuntimeError if shapes differ or, with `strict`, names; ValueError for shards that were cut in another
            way.
        """
        if not self.partitioned:
            self._stored_states.append((dict(state_dict), strict, same_partition_load))
            return None
        found = self._load(state_dict, strict, same_partition_load)
        stepper = getattr(self._runtime.optimizer, "stepper", None)
        if stepper is not None:
            stepper.take_parameters()  # otherwise its masters would restore the old values
        return found

    def load_stored_states(self) -> None:
        """Load the stored states, called once modules are placed."""
        stored, self._stored_states = self._stored_states, []
        for state, strict, same_partition_load in stored:
            self._load(state, strict, same_partition_load)

    def _load(self, state_dict: State, strict: bool, same_partition_load: bool) -> Any:
        if self.sharded is not None:
            if state_dict.get(IS_PARTIAL, False):
                return load_local_model_state(self.sharded, state_dict)
            return load_full_model_state(self.sharded, cut_whole(state_dict, self.tensor_slices), strict=strict)
        if not state_dict.get(IS_PARTIAL, False):
            return load_full(self.inner, self._owners, self._runtime.pipeline_rank, state_dict, strict)
        if same_partition_load:
            return load_part(self.inner, self._owners, self._runtime.pipeline_rank, state_dict, strict)
        whole = full_state(state_dict, self._runtime)
        return load_full(self.inner, self._owners, self._runtime.pipeline_rank, whole, strict)

    def _partial_modules(self) -> Iterator[torch.nn.Module]:
        """Yield the modules whose own parameters lie on another pipeline rank, or in shards."""
        if self.sharded is None:
            yield from super()._partial_modules()
            return
        for module in self.inner.modules():
            if any(self.sharded.is_cut(one) for one in module.parameters(recurse=False)):
                yield module

    def cpu(self) -> Self:
        """Gather all stages on every rank, in host memory; slices are not joined. All ranks of a model call it.

        The model cannot be trained afterwards.
        """
        state = self.state_dict()
        for handle in self._parts_handles:
            handle.remove()
        for parameter in self.inner.parameters():
            parameter.data = torch.empty(parameter.shape, dtype=parameter.dtype)
        for module in self.inner.modules():
            for name, buffer in module.named_buffers(recurse=False):
                module._buffers[name] = buffer.cpu()
        self.inner.load_state_dict(cut_whole(state, self.tensor_slices))
        return self
