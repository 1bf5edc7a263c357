"""Marks of cut parameters, and the joining of their slices.

Where: `transform` marks each cut on the module that owns the parameter; FSDP's flat parameters record owner and name
too, so the mark can be found before and after wrapping. The norm of gradients, states, checks of mistakes and delayed
initialisation read the marks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

Axis = Literal["tp", "ep"]

_MARKS = "_clary_cuts"  # the attribute of a module: marks by the names of its own parameters
_WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")


@dataclass(frozen=True)
class Cut:
    """The division of a parameter over the ranks of an axis: equal slices along `dim`, or whole on one rank.

    Args:
        axis: the kind of group whose ranks hold the slices: tensor group or expert group.
        parts: lengths along `dim`, before the cut, of the pieces of the parameter; each piece is cut into equal slices,
            and a matrix of gate and up projections has two pieces. Empty if the parameter lies whole on one rank of the
            axis.
    """

    axis: Axis
    dim: int
    parts: tuple[int, ...]

    @property
    def length(self) -> int:
        """The whole length along `dim`."""
        return sum(self.parts)

    def of(self, whole: torch.Tensor, rank: int, size: int) -> torch.Tensor:
        """Return a copy of the slice of one rank.

        Args:
            whole: tensor of any shape with `length` along `dim`.
            rank: rank in the group along `axis`.
            size: number of ranks in that group.

        Raises: ValueError if the tensor has another length, or `size` does not divide every part.
        """
        if whole.shape[self.dim] != self.length:
            raise ValueError(
                f"a tensor of shape {tuple(whole.shape)} was to be cut along dimension {self.dim}, which is "
                f"{self.length} long in the model"
            )
        odd = [part for part in self.parts if part % size]
        if odd:
            raise ValueError(
                f"a part of length {odd[0]} along dimension {self.dim} of a parameter cannot be cut into "
                f"{size} equal slices"
            )
        pieces = whole.detach().split(self.parts, self.dim)
        own = [
            piece.narrow(self.dim, rank * (part // size), part // size)
            for piece, part in zip(pieces, self.parts, strict=True)
        ]
        return own[0].clone(memory_format=torch.contiguous_format) if len(own) == 1 else torch.cat(own, self.dim)

    def join(self, slices: list[torch.Tensor]) -> torch.Tensor:
        """Join the slices of all ranks, in rank order, to the whole tensor."""
        shares = [part // len(slices) for part in self.parts]
        pieces = [one.split(shares, self.dim) for one in slices]
        return torch.cat([one[at] for at in range(len(self.parts)) for one in pieces], self.dim)

    def slice_shape(self, whole: torch.Size, size: int) -> torch.Size:
        """Return the shape of a slice of a tensor of shape `whole`."""
        shape = list(whole)
        shape[self.dim] //= size
        return torch.Size(shape)

    def whole_shape(self, own: torch.Size) -> torch.Size:
        """Return the shape of the whole tensor for a slice of shape `own`."""
        shape = list(own)
        shape[self.dim] = self.length
        return torch.Size(shape)


def mark(module: nn.Module, name: str, cut: Cut) -> None:
    """Mark the module's own parameter `name` with its cut; an earlier mark is replaced.

    Args:
        name: attribute name, without a path.
        cut: how the whole parameter is divided over the ranks.
    """
    vars(module).setdefault(_MARKS, {})[name] = cut


def cut_of(module: nn.Module, name: str) -> Cut | None:
    """Return the cut of the module's own parameter `name`; None if all ranks hold the whole parameter."""
    found: Cut | None = vars(module).get(_MARKS, {}).get(name)
    return found


def cuts_by_name(model: nn.Module) -> dict[str, Cut]:
    """Return a model's cuts by full parameter names without wrappers; a tied parameter has one entry per name."""
    return {name: cut for name, cut in marks_by_name(model).items() if cut.parts}


def marks_by_name(model: nn.Module) -> dict[str, Cut]:
    """Return a model's marks by names as in `cuts_by_name`, including parameters that lie whole on one rank."""
    found = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, cut in vars(module).get(_MARKS, {}).items():
            found[clean_name(f"{prefix}.{name}" if prefix else name)] = cut
    return found


def axes_of(model: nn.Module) -> set[Axis]:
    """Return the axes over which a model's parameters are spread, as slices or whole on one rank."""
    return {cut.axis for module in model.modules() for cut in vars(module).get(_MARKS, {}).values()}


def clean_name(name: str) -> str:
    """Return a parameter's name without the parts that FSDP, torch.compile, checkpointing and offloading add."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name
