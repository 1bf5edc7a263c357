"""A model whose modules lie on pipeline ranks: access to this rank's part, and to the replicas of its parameters.

Where: base of `DistributedModel`, whose constructor or first step places the modules.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from clary.train.parallel.layers_around import LayerAround
from clary.train.parallel.layout.mesh import Along
from clary.train.parallel.runtime import Runtime
from clary.train.parallel.tensor.module import DistributedModule


class PlacedModel(torch.nn.Module):
    """Names and owners of the modules of a model.

    Args:
        module: the wrapped model.
    """

    def __init__(self, module: torch.nn.Module, runtime: Runtime) -> None:
        super().__init__()
        self._modules["module"] = module  # part of the names of parameters
        self._runtime = runtime
        self._owners: dict[str, int] = {}
        self.partitioned = False

    @property
    def inner(self) -> torch.nn.Module:
        """The wrapped model."""
        found = self._modules["module"]
        assert found is not None
        return found

    @property
    def module(self) -> Any:
        """The wrapped model, for scripts of older versions with their additional `module` attributes."""
        return LayerAround(self.inner)

    @property
    def owners(self) -> dict[str, int]:
        """The pipeline rank of every module, by its path; empty until modules are placed."""
        return dict(self._owners)

    def owner_of(self, name: str) -> int:
        """Return the pipeline rank of a module, by its path in the wrapped model.

        Raises: RuntimeError before the first step of a pipeline.
        """
        if not self.partitioned:
            raise RuntimeError("modules have no ranks yet: the first step places them (register_post_partition_hook)")
        return self._owners[name]

    def local_named_modules(self) -> Iterator[tuple[str, torch.nn.Module]]:
        """Yield the modules of this rank, with their paths in the wrapped model."""
        for name, module in self.inner.named_modules():
            if self.owner_of(name) == self._runtime.pipeline_rank:
                yield name, module

    def local_modules(self) -> Iterator[torch.nn.Module]:
        """Yield the modules of this rank."""
        return (module for _, module in self.local_named_modules())

    def local_named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Yield the parameters of this rank, each once."""
        seen: set[int] = set()
        for prefix, module in self.local_named_modules():
            for name, parameter in module.named_parameters(recurse=False):
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield (f"{prefix}.{name}" if prefix else name), parameter

    def local_parameters(self) -> Iterator[torch.nn.Parameter]:
        """Yield the parameters of this rank."""
        return (parameter for _, parameter in self.local_named_parameters())

    def local_named_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the buffers of this rank."""
        for prefix, module in self.local_named_modules():
            for name, buffer in module.named_buffers(recurse=False):
                yield (f"{prefix}.{name}" if prefix else name), buffer

    def local_buffers(self) -> Iterator[torch.Tensor]:
        """Yield the buffers of this rank."""
        return (buffer for _, buffer in self.local_named_buffers())

    def _partial_modules(self) -> Iterator[torch.nn.Module]:
        """Yield the modules whose own parameters lie on another pipeline rank."""
        for name, module in self.inner.named_modules():
            is_elsewhere = self._owners[name] != self._runtime.pipeline_rank
            if is_elsewhere and next(module.parameters(recurse=False), None) is not None:
                yield module

    def virtual_named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Yield the items of `named_parameters`, since no parameter is virtual here."""
        yield from self.named_parameters()

    # Tensor parallelism.

    def distributed_modules(self) -> Iterator[torch.nn.Module]:
        """Yield the modules that are cut over the tensor group."""
        return (one for one in self.inner.modules() if getattr(one, "is_distributed", False))

    def is_distributed_parameter(self, parameter: torch.nn.Parameter) -> bool:
        """Return whether a parameter is a slice, of which other tensor ranks hold other slices."""
        return getattr(parameter, "tensor_slice", None) is not None

    def is_distributed_buffer(self, buffer: torch.Tensor) -> bool:
        """Return whether a buffer is a slice; always False.

        Args:
            buffer: of any shape.
        """
        return False

    def is_scaled_batch_parameter(self, parameter: torch.nn.Parameter) -> bool:
        """Return whether a parameter sees its whole tensor group's batch, and so is averaged over rdp alone."""
        return id(parameter) in self._parameters_of_groups()

    def is_scaled_batch_buffer(self, buffer: torch.Tensor) -> bool:
        """Return whether a buffer belongs to a distributed module, which sees its whole tensor group's batch.

        Args:
            buffer: of any shape.
        """
        return any(buffer is one for module in self.distributed_modules() for one in module.buffers())

    def default_reducer_named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Yield this rank's parameters that are averaged over dp."""
        return ((name, one) for name, one, along in self._parameters_and_axes() if along is Along.DP)

    def scaled_batch_reducer_named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Yield this rank's parameters that are averaged over rdp."""
        return ((name, one) for name, one, along in self._parameters_and_axes() if along is Along.RDP)

    def _parameters_and_axes(self) -> Iterator[tuple[str, torch.nn.Parameter, Along]]:
        """Yield this rank's parameters, each with the axes over which it is replicated."""
        of_groups = self._parameters_of_groups()
        for name, parameter in self.local_named_parameters():
            yield name, parameter, Along.RDP if id(parameter) in of_groups else Along.DP

    def own_parts(self) -> dict[str, torch.nn.Parameter]:
        """Return, by name, parameters that a program may have cut itself and that lie in distributed modules.

        See [Note: a program's own parts] of `tensor.module`; empty without `prescaled_batch`.
        """
        distributed = [one for one in self.inner.modules() if isinstance(one, DistributedModule)]
        made = {id(parameter) for module in distributed for parameter in module.parameters_of_group()}
        own = self._parameters_of_groups() - made
        return {name: parameter for name, parameter in self.inner.named_parameters() if id(parameter) in own}

    def _parameters_of_groups(self) -> set[int]:
        """Return the ids of parameters that are averaged over rdp alone."""
        has_one_batch = self._runtime.configuration.prescaled_batch
        return {
            id(parameter)
            for module in self.inner.modules()
            if isinstance(module, DistributedModule)
            for parameter in (module.parameters() if has_one_batch else module.parameters_of_group())
        }
