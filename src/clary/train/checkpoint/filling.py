"""Loads a checkpoint's tensors and values into existing models, optimizers and dicts.

Tensors are read in place: a module's into the module's tensors, an optimizer's into the optimizer's tensors or, before
its first step, into new tensors that are sharded like its parameters. `states` defines the names.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.stateful import Stateful
from torch.optim import Optimizer

from clary.train.checkpoint.parameter_groups import check_groups, saved_list_names, unknown_parameters
from clary.train.checkpoint.plans import VALUE_MARK
from clary.train.checkpoint.states import (
    bare_module,
    check_names,
    holes,
    module_state,
    names_by_group,
    optimizer_parameters,
    parameter_names,
    put_together,
)


@dataclass
class Filling:
    """A state that is being filled in three steps: `values`, `tensors`, `finish`; the caller reads bytes between them.

    Raises: ValueError, TypeError from each step, if the checkpoint does not fit the state.
    """

    state: MutableMapping[str, Any]
    metadata: Metadata
    _loaded: dict[str, Any] = field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        """Return the names of the values to read. Raises: TypeError, ValueError."""
        check_names(self.state)
        names = []
        for key, one in self.state.items():
            if isinstance(one, Optimizer):
                names.append(f"{VALUE_MARK}{key}/groups")
                names += saved_list_names(key, self.metadata.state_dict_metadata)
            elif not isinstance(one, nn.Module):
                names.append(f"{VALUE_MARK}{key}")
        missing = [name for name in names if name not in self.metadata.state_dict_metadata]
        if missing:
            found = sorted({name.lstrip(VALUE_MARK).split("/")[0] for name in self.metadata.state_dict_metadata})
            raise ValueError(f"the checkpoint has nothing under {missing[0].strip('=')!r}; it has {', '.join(found)}")
        return dict.fromkeys(names)

    def tensors(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the tensors to read into, by name.

        Args:
            values: the values that the caller read for the names from `values`.
        """
        self._loaded = dict(values)
        wanted: dict[str, Any] = {}
        names = parameter_names(self.state)
        for key, one in self.state.items():
            if isinstance(one, nn.Module):
                wanted.update(self._of_module(key, one))
            elif isinstance(one, Optimizer):
                wanted.update(self._of_optimizer(key, one, names))
            else:
                beside = one.state_dict() if isinstance(one, Stateful) else one
                for number, tensor in holes(values[f"{VALUE_MARK}{key}"], beside):
                    name = f"{VALUE_MARK}{key}/{number}"
                    wanted[name] = self._room(name, tensor)
        return wanted

    def finish(self, tensors: dict[str, Any]) -> None:
        """Load the tensors, which the caller has read, into the program's objects.

        Args:
            tensors: the filled tensors from `tensors`.
        """
        self._loaded.update(tensors)
        names = parameter_names(self.state)
        for key, one in list(self.state.items()):
            if isinstance(one, nn.Module):
                bare = bare_module(one)
                own = {name: self._loaded[f"{key}/{bare_name}"] for name, bare_name in _module_names(bare)}
                bare.load_state_dict(own)
            elif isinstance(one, Optimizer):
                self._finish_optimizer(key, one, names)
            else:
                self._finish_value(key, one)

    def _of_module(self, key: str, module: nn.Module) -> dict[str, Any]:
        own = {f"{key}/{name}": value for name, value in module_state(module).items()}
        saved = {name for name in self.metadata.state_dict_metadata if name.startswith(f"{key}/")}
        if own.keys() != saved:
            lacking, left = sorted(own.keys() - saved), sorted(saved - own.keys())
            raise ValueError(
                f"{key} is not the module that was saved: the checkpoint lacks {len(lacking)} of its names"
                f"{_first(lacking)} and has {len(left)} that it does not know{_first(left)}"
            )
        return own

    def _of_optimizer(self, key: str, optimizer: Optimizer, names: dict[int, str]) -> dict[str, Any]:
        by_parameter: dict[str, list[str]] = {}
        for name in self.metadata.state_dict_metadata:
            if name.startswith(f"{key}/state/"):
                by_parameter.setdefault(name.removeprefix(f"{key}/state/").rpartition("/")[0], []).append(name)
        self._check_optimizer(key, names_by_group(optimizer, names), set(by_parameter))
        wanted: dict[str, Any] = {}
        for parameter_name, parameter in optimizer_parameters(optimizer, names):
            for name in by_parameter.get(parameter_name, []):
                saved = self.metadata.state_dict_metadata[name]
                present = optimizer.state.get(parameter, {}).get(name.rpartition("/")[2])
                is_tensor = isinstance(saved, TensorStorageMetadata)
                if is_tensor and saved.size == parameter.shape and not isinstance(present, torch.Tensor):
                    present = torch.empty_like(parameter.detach(), dtype=saved.properties.dtype)
                wanted[name] = self._room(name, present)
        return wanted

    def _check_optimizer(self, key: str, own: list[list[str]], with_state: set[str]) -> None:
        """Refuse an optimizer whose groups or parameters differ from the saved ones.

        Args:
            own: by group, names of the optimizer's parameters.
            with_state: names of the parameters that have a state in the checkpoint.
        """
        num_saved = len(self._loaded[f"{VALUE_MARK}{key}/groups"])
        if num_saved != len(own):
            raise ValueError(f"{key} has {len(own)} groups of parameters; {num_saved} were saved")
        lists = [self._loaded[name] for name in saved_list_names(key, self._loaded)]
        if lists:
            check_groups(key, own, lists)
            return
        own_names = [name for group in own for name in group]  # a checkpoint of an earlier release
        unknown, left = [name for name in own_names if name not in with_state], sorted(with_state - set(own_names))
        if unknown and left:
            raise unknown_parameters(key, unknown, left)

    def _room(self, name: str, present: Any) -> Any:
        """Return a tensor to read into: `present` if it fits, else a new tensor."""
        saved = self.metadata.state_dict_metadata[name]
        if not isinstance(saved, TensorStorageMetadata):
            return None
        dtype = saved.properties.dtype
        if isinstance(present, torch.Tensor) and present.shape == saved.size and present.dtype == dtype:
            return present.detach()
        if len(saved.chunks) > 1 and "/state/" in name:
            raise ValueError(
                f"{name} has shape {tuple(saved.size)} and lies in {len(saved.chunks)} pieces; expected the shape of "
                "its parameter: make one optimizer step before restoring, so that there are tensors to read into"
            )
        return torch.empty(saved.size, dtype=dtype)

    def _finish_optimizer(self, key: str, optimizer: Optimizer, names: dict[int, str]) -> None:
        groups = self._loaded[f"{VALUE_MARK}{key}/groups"]
        numbers = iter(range(sum(len(group["params"]) for group in optimizer.param_groups)))
        packed_groups = [
            {**saved, "params": [next(numbers) for _ in group["params"]]}
            for saved, group in zip(groups, optimizer.param_groups, strict=True)
        ]
        state: dict[int, dict[str, Any]] = {}
        prefixes = [f"{key}/state/{name}/" for name, _ in optimizer_parameters(optimizer, names)]
        by_prefix: dict[str, dict[str, Any]] = {}
        for name, value in self._loaded.items():
            start, _, what = name.rpartition("/")
            by_prefix.setdefault(f"{start}/", {})[what] = value
        for number, prefix in enumerate(prefixes):
            if prefix in by_prefix:
                state[number] = by_prefix[prefix]
        optimizer.load_state_dict({"state": state, "param_groups": packed_groups})

    def _finish_value(self, key: str, one: Any) -> None:
        skeleton = self._loaded[f"{VALUE_MARK}{key}"]
        numbers = sorted(number for number, _ in holes(skeleton, None))
        value = put_together(skeleton, [self._loaded[f"{VALUE_MARK}{key}/{number}"] for number in numbers])
        if isinstance(one, Stateful):
            one.load_state_dict(value)
        elif isinstance(one, dict) and isinstance(value, dict):
            one.clear()
            one.update(value)
        else:
            self.state[key] = value


def _module_names(module: nn.Module) -> list[tuple[str, str]]:
    return list(zip(module.state_dict(), module_state(module), strict=True))


def _first(names: list[str]) -> str:
    return f" ({names[0]})" if names else ""
