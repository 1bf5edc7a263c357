"""`tsm.state`: the configuration, ranks and groups of a process.

Where: `session.init` sets it; the other modules of the package read it.
Source: SageMaker developer guide, "SageMaker model parallel library v2 reference".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist

from clary.train.parallel import one_library
from clary.train.parallel.fsdp.configuration import FsdpConfiguration
from clary.train.parallel.fsdp.experts.groups import ExpertGroups
from clary.train.parallel.fsdp.ranker import Ranker

DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {one.name: one.default for one in fields(FsdpConfiguration) if "read" in one.metadata}
)
_OWN_RANDOMNESS = "model-parallel-rng"  # name of the random state that differs between tensor ranks


class State:
    """State that scripts read, and may assign before `init`: keys of the job and of `init` override assigned keys.

    Keys that are neither assigned nor configured have their defaults. Groups that a program does not need are None:
    `rep_rank_process_group` and `shard_process_group` with hybrid_shard_degree 0 and no tensor parallelism, and the
    group of any axis with degree 1.
    """

    configuration: FsdpConfiguration | None = None
    assigned: Mapping[str, Any] = MappingProxyType({})  # keys that the script assigned before `init`
    hybrid_shard_degree: int
    sm_activation_offloading: bool
    activation_loading_horizon: int
    fsdp_cache_flush_warnings: bool
    allow_empty_shards: bool
    tensor_parallel_degree: int
    context_parallel_degree: int
    expert_parallel_degree: int
    random_seed: int
    rep_rank_process_group: Any = None
    shard_process_group: Any = None
    tp_process_group: Any = None
    cp_process_group: Any = None
    ep_process_group: Any = None
    expert_groups: ExpertGroups | None = None
    slice_cuts: Mapping[str, Any] = MappingProxyType({})  # cuts by parameter, of models with sharded states
    is_transformed = False  # whether `tsm.transform` has transformed a model
    removals: Sequence[Callable[[], None]] = ()  # functions that remove `init`'s additions to FSDP

    def __getattr__(self, name: str) -> Any:
        """Return the default of a key."""
        if name in DEFAULTS:
            return DEFAULTS[name]
        raise AttributeError(f"tsm.state has no {name}; its keys are {', '.join(DEFAULTS)}")

    @property
    def rank(self) -> int:
        """This process's rank."""
        return int(dist.get_rank()) if dist.is_initialized() else 0

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return int(dist.get_world_size()) if dist.is_initialized() else 1

    @property
    def world_process_group(self) -> Any:
        """The group of all ranks.

        Raises: RuntimeError if torch.distributed is not initialised.
        """
        if not dist.is_initialized():
            raise RuntimeError("tsm.state.world_process_group: call torch.distributed.init_process_group first")
        return dist.group.WORLD

    @property
    def ranker(self) -> Ranker:
        """The `Ranker` of this program, which computes the ranks that hold the same shard."""
        return Ranker(
            self.world_size,
            self.hybrid_shard_degree,
            self.tensor_parallel_degree,
            self.context_parallel_degree,
            self.expert_parallel_degree,
        )

    @property
    def tp_size(self) -> int:
        """Number of ranks that hold slices of one layer."""
        return self.tensor_parallel_degree

    @property
    def tp_rank(self) -> int:
        """Number of this rank's slice."""
        return self.rank % self.tensor_parallel_degree

    @property
    def cp_size(self) -> int:
        """Number of ranks that hold parts of one sequence."""
        return self.context_parallel_degree

    @property
    def cp_rank(self) -> int:
        """Number of this rank's part of a sequence."""
        return self.rank // self.tensor_parallel_degree % self.context_parallel_degree

    @property
    def ep_size(self) -> int:
        """Number of ranks that hold different experts."""
        return self.expert_parallel_degree

    @property
    def ep_rank(self) -> int:
        """Index of this rank among the ranks that hold different experts."""
        return self.rank % self.expert_parallel_degree

    def get_rng_state_tracker(self) -> RandomStates:
        """Return the tracker of random states for code that must draw different numbers on each rank.

        It initially has one state, the default of `fork`, whose seed is `random_seed` plus the tensor rank or the
        expert parallel rank.
        """
        if "_random_states" not in vars(self):
            self._random_states = RandomStates()
            rank = self.tp_rank if self.tp_size > 1 else self.ep_rank
            self._random_states.add(_OWN_RANDOMNESS, self.random_seed + rank)
        return self._random_states

    def reset(self) -> None:
        """Reset all state, including assigned keys, and restore torch's FSDP. torch.distributed keeps the groups."""
        for remove in self.removals:
            remove()
        vars(self).clear()
        one_library.release(one_library.V2)


class RandomStates:
    """Random states by name, in addition to torch's default state."""

    def __init__(self) -> None:
        self._states: dict[str, Any] = {}

    def add(self, name: str, seed: int) -> None:
        """Add a state with a seed.

        Raises: ValueError if a state of this name exists.
        """
        if name in self._states:
            raise ValueError(f"a random state {name!r} is there already; fork it, or choose another name")
        generators = _generator_states()
        torch.manual_seed(seed)
        self._states[name] = _generator_states()
        _restore(generators)

    @contextmanager
    def fork(self, name: str = _OWN_RANDOMNESS) -> Iterator[None]:
        """Draw random numbers from the named state in this block; the next block continues the same state.

        Raises: KeyError if `add` was not called with this name.
        """
        if name not in self._states:
            raise KeyError(f"no random state {name!r}; there are {sorted(self._states)}: call add(name, seed) first")
        before = _generator_states()
        _restore(self._states[name])
        try:
            yield
        finally:
            self._states[name] = _generator_states()
            _restore(before)


state = State()


def is_initialized() -> bool:
    """Return whether `init` has been called."""
    return state.configuration is not None


def _generator_states() -> tuple[Any, Any]:
    return torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None


def _restore(states: tuple[Any, Any]) -> None:
    torch.set_rng_state(states[0])
    if states[1] is not None:
        torch.cuda.set_rng_state_all(states[1])
