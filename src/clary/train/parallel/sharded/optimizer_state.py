"""Optimizer state spread over replicas: parameters are whole on all ranks, each parameter's state lies on one rank.

Where: it wraps an optimizer; each parameter of the optimizer is whole on several ranks. A step averages every gradient
on the parameter's owner, lets the owner update the parameter, and sends the updated parameters to the other ranks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from clary.train.parallel.sharded.owners import assign_owners
from clary.train.parallel.sharded.parts import Part, reduce_bucket, send_bucket

FORMAT = 1
_WIDE_BYTES = 4


class ShardedStateOptimizer:
    """A torch optimizer whose state is spread over the ranks that hold the same parameters.

    Any torch optimizer works: an owner updates whole parameters, with the same result as without spreading. (An
    optimizer that uses all parameters at once, such as LBFGS, sees the owned parameters alone.) `param_groups` keep
    their options and order, and hold the owned parameters alone; schedulers may use this object.

    Args:
        optimizer: optimizer of all parameters, without state yet.
        group_of: returns the group of ranks that hold a parameter; all these ranks make this object at the same time.
        with_masters: whether owners update float32 copies of 16-bit parameters.

    Raises: ValueError if the optimizer already has state.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        group_of: Callable[[torch.nn.Parameter], dist.ProcessGroup],
        *,
        with_masters: bool = False,
    ) -> None:
        if optimizer.state:
            raise ValueError(
                f"{type(optimizer).__name__} has state already: shard it before its first step, then load the state"
            )
        self.optimizer = optimizer
        self._parameters = [one for group in optimizer.param_groups for one in group["params"]]
        number_of = {one: number for number, one in enumerate(self._parameters)}
        self._group_numbers = [[number_of[one] for one in group["params"]] for group in optimizer.param_groups]
        by_group: dict[dist.ProcessGroup, list[int]] = {}
        for number, parameter in enumerate(self._parameters):
            by_group.setdefault(group_of(parameter), []).append(number)
        self._parts = [self._part(group, numbers) for group, numbers in by_group.items()]
        self._owned = {
            number
            for part in self._parts
            for number, owner in zip(part.numbers, part.ownership.owners, strict=True)
            if owner == part.rank
        }
        self._masters = {
            number: torch.nn.Parameter(self._parameters[number].detach().float())
            for number in sorted(self._owned)
            if with_masters and self._parameters[number].dtype.itemsize < _WIDE_BYTES
        }
        # version counters of parameters with masters, as of the last copy between parameters and masters
        self._versions: dict[int, int] = {}
        self._note_versions()
        for group, numbers in zip(optimizer.param_groups, self._group_numbers, strict=True):
            group["params"] = [self._stepped(number) for number in numbers if number in self._owned]
        self._are_reduced = False
        self._used: dict[int, set[int]] = {}

    @property
    def reasons(self) -> list[str]:
        """The reasons for the assignment of parameters, by group of ranks."""
        return [part.ownership.reason for part in self._parts]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Groups of the optimizer, with the owned parameters."""
        groups: list[dict[str, Any]] = self.optimizer.param_groups
        return groups

    @property
    def state(self) -> dict[Any, Any]:
        """State of the owned parameters."""
        state: dict[Any, Any] = self.optimizer.state
        return state

    @torch.no_grad()
    def reduce_gradients(self) -> None:
        """Average each gradient over the ranks that hold the parameter, on its owner; drop it on the other ranks.

        A gradient that some ranks lack counts as 0 there. All ranks call it, once before a step.

        Raises: RuntimeError if a collective failed; gradients are lost then.
        """
        for index, part in enumerate(self._parts):
            used = torch.tensor([float(one.grad is not None) for one in part.parameters])
            used = used.to(part.parameters[0].device)
            dist.all_reduce(used, group=part.group)
            self._used[index] = {place for place, count in enumerate(used.tolist()) if count}
            for bucket in part.buckets(sorted(self._used[index])):
                reduce_bucket(part, bucket)
        self._are_reduced = True

    def owned_gradients(self) -> list[torch.Tensor]:
        """Return the gradients of the parameters that this rank owns; every parameter has one owner."""
        found = (self._parameters[number].grad for number in sorted(self._owned))
        return [gradient for gradient in found if gradient is not None]

    @property
    def are_reduced(self) -> bool:
        """Whether gradients are averaged over all ranks, ready for a step."""
        return self._are_reduced

    @property
    def have_gradients(self) -> bool:
        """Whether any rank had a gradient at the last reduction."""
        return any(self._used.values())

    def owned_parameters(self) -> list[torch.nn.Parameter]:
        """Return the parameters of `owned_gradients`, in the same order."""
        return [one for number in sorted(self._owned) if (one := self._parameters[number]).grad is not None]

    def take_parameters(self) -> None:
        """Copy the parameters into the masters after a load."""
        self._load_masters({})

    @torch.no_grad()
    def step(self, *, loss_scale: float = 1.0) -> None:
        """Update the owned parameters and send them to the other ranks, after reducing gradients if needed.

        Args:
            loss_scale: divisor of gradients; gradients of masters are divided in float32.

        All ranks call it. To clip or unscale, first call `reduce_gradients` and change `owned_gradients`.

        Raises: RuntimeError if a collective failed; parameters may then differ between ranks.
        """
        if not self._are_reduced:
            self.reduce_gradients()
        self._are_reduced = False
        self._take_writes()
        for number, master in self._masters.items():
            gradient = self._parameters[number].grad
            master.grad = None if gradient is None else gradient.float().div_(loss_scale)
        if loss_scale != 1.0:
            for number in self._owned - set(self._masters):
                if (gradient := self._parameters[number].grad) is not None:
                    gradient.div_(loss_scale)
        self.optimizer.step()
        for number, master in self._masters.items():
            self._parameters[number].data.copy_(master)
            master.grad = None
        for index, part in enumerate(self._parts):
            for bucket in part.buckets(sorted(self._used[index])):
                send_bucket(part, bucket)
        self._note_versions()

    def take_reduced_gradients(self) -> None:
        """Accept gradients already averaged over all ranks, such as DDP's; drop gradients of parameters not owned."""
        for index, part in enumerate(self._parts):
            self._used[index] = {place for place, one in enumerate(part.parameters) if one.grad is not None}
        for number, parameter in enumerate(self._parameters):
            if number not in self._owned:
                parameter.grad = None
        self._are_reduced = True

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear all gradients, including those of parameters that are not owned."""
        self._are_reduced = False
        for parameter in self._parameters:
            if set_to_none or parameter.grad is None:
                parameter.grad = None
            else:
                parameter.grad.zero_()

    def local_state_dict(self) -> dict[str, Any]:
        """Return the optimizer state of the owned parameters, and their masters."""
        return {**self._header(), "optimizer": self.optimizer.state_dict(), "masters": self._master_values()}

    def load_local_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load this rank's `local_state_dict`, saved with the same number of ranks and the same parameters.

        Raises: ValueError if the state was spread differently; the optimizer is unchanged then.
        """
        for key, own in self._header().items():
            if state.get(key) != own:
                raise ValueError(
                    f"local optimizer state has {key} {state.get(key)}; expected {own}: a local state loads only "
                    "on the rank that saved it, with the same number of ranks; save a full state to change the "
                    "number of ranks"
                )
        self.optimizer.load_state_dict(state["optimizer"])
        self._load_masters(state["masters"])

    def full_state_dict(self, *, to_rank0: bool = False) -> dict[str, Any]:
        """Return the optimizer's unspread state_dict, in host memory, with `masters` by parameter number.

        All ranks call it.

        Args:
            to_rank0: whether the first rank of every group alone gets the full state; other ranks get their owned part.
        """
        inner = self.optimizer.state_dict()
        numbers = [number for group in self._group_numbers for number in group if number in self._owned]
        own = {
            numbers[index]: {
                key: value.to("cpu", copy=True) if isinstance(value, torch.Tensor) else copy.deepcopy(value)
                for key, value in one.items()
            }
            for index, one in inner["state"].items()
        }
        mine = {"state": own, "masters": self._master_values()}
        found: dict[str, dict[int, Any]] = {"state": {}, "masters": {}}
        for part in self._parts:
            theirs = {
                name: {number: value for number, value in by.items() if number in part.numbers}
                for name, by in mine.items()
            }
            for one in _gather(theirs, part.group, to_first=to_rank0):
                for name, values in one.items():
                    found[name] |= values
        groups = [
            {**group, "params": numbers}
            for group, numbers in zip(inner["param_groups"], self._group_numbers, strict=True)
        ]
        return {"state": dict(sorted(found["state"].items())), "param_groups": groups, "masters": found["masters"]}

    def load_full_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the owned part of a `full_state_dict`, or of the state of an optimizer that is not spread.

        Missing masters are copied from the parameters, which must be loaded before.

        Raises: ValueError if groups of parameters differ; torch may raise it too.
        """
        numbers = [number for group in self._group_numbers for number in group if number in self._owned]
        places = {number: place for place, number in enumerate(numbers)}
        given = [group["params"] for group in state["param_groups"]]
        if list(map(len, given)) != list(map(len, self._group_numbers)):
            raise ValueError(
                f"optimizer state has groups of {list(map(len, given))} parameters; expected "
                f"{list(map(len, self._group_numbers))}"
            )
        groups = [
            {**group, "params": [places[number] for number in own if number in places]}
            for group, own in zip(state["param_groups"], self._group_numbers, strict=True)
        ]
        own_state = {places[number]: copy.deepcopy(one) for number, one in state["state"].items() if number in places}
        self.optimizer.load_state_dict({"state": own_state, "param_groups": groups})
        self._load_masters(state.get("masters", {}))

    def _part(self, group: dist.ProcessGroup, numbers: list[int]) -> Part:
        parameters = [self._parameters[number] for number in numbers]
        return Part(group, numbers, parameters, assign_owners([one.numel() for one in parameters], group.size()))

    def _stepped(self, number: int) -> torch.nn.Parameter:
        return self._masters.get(number, self._parameters[number])

    def _master_values(self) -> dict[int, torch.Tensor]:
        self._take_writes()
        return {number: master.detach().to("cpu", copy=True) for number, master in self._masters.items()}

    def _load_masters(self, values: Mapping[int, torch.Tensor]) -> None:
        for number, master in self._masters.items():
            master.data.copy_(values[number] if number in values else self._parameters[number].detach())
        self._note_versions()

    def _note_versions(self) -> None:
        self._versions = {number: self._parameters[number]._version for number in self._masters}

    def _take_writes(self) -> None:
        """Copy to the masters the values that a script has written into parameters since the last step."""
        for number, master in self._masters.items():
            if self._parameters[number]._version != self._versions[number]:
                master.data.copy_(self._parameters[number].detach())
        self._note_versions()

    def _header(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "ranks": [(part.rank, int(part.group.size())) for part in self._parts],
            "owners": [part.ownership.owners for part in self._parts],
            "shapes": [tuple(parameter.shape) for parameter in self._parameters],
        }


def _gather(value: Any, group: dist.ProcessGroup, *, to_first: bool) -> list[Any]:
    everyone: list[Any] = [None] * group.size()
    if not to_first:
        dist.all_gather_object(everyone, value, group=group)
        return everyone
    is_first = group.rank() == 0
    dist.gather_object(value, everyone if is_first else None, dst=dist.get_global_rank(group, 0), group=group)
    return everyone if is_first else [value]
