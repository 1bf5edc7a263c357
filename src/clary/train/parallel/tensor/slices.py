"""The slices of parameters that the ranks of a tensor group hold: marking, cutting and drawing.

Where: layers mark their slices; checkpoints gather and cut by the marks; `draw` makes initial weights, so that a cut
layer starts with the values of a whole layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from clary.train.parallel.tensor.collectives import TensorGroup

MARK = "tensor_slice"  # attribute of a slice that holds its mark


@dataclass(frozen=True)
class TensorSlice:
    """Mark of a parameter that is slice `rank` of `size` equal slices along `dimension` of the whole parameter."""

    dimension: int
    rank: int
    size: int

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """Return a copy of this slice of a whole tensor.

        Args:
            whole: of any shape; the result is shorter by the factor `size` along `dimension`.

        Raises: ValueError if the length along `dimension` is not a multiple of `size`.
        """
        length, rest = divmod(whole.shape[self.dimension], self.size)
        if rest:
            raise ValueError(
                f"a tensor of shape {tuple(whole.shape)} cannot be cut along dimension {self.dimension} into "
                f"{self.size} equal slices"
            )
        return whole.narrow(self.dimension, self.rank * length, length).clone()


def slice_of(parameter: torch.Tensor) -> TensorSlice | None:
    """Return the slice mark of a parameter; None if it is whole.

    Args:
        parameter: of any shape.
    """
    return getattr(parameter, MARK, None)


def dimension_of(parameter: torch.Tensor) -> int | None:
    """Return the dimension along which a parameter is cut; None if it is whole.

    Args:
        parameter: of any shape.
    """
    piece = slice_of(parameter)
    return None if piece is None else piece.dimension


def new_parameter(
    shape: tuple[int, ...], group: TensorGroup, dimension: int | None, dtype: torch.dtype | None = None
) -> nn.Parameter:
    """Return an uninitialised parameter for this rank's slice of a weight, with the slice's mark.

    Args:
        shape: shape of the whole weight.
        dimension: the dimension to cut; None keeps the weight whole and without a mark.
        dtype: None is torch's default.

    Raises: NotDivisibleError if the group does not divide the dimension.
    """
    local = list(shape)
    if dimension is not None:
        local[dimension] = group.divide(shape[dimension], f"dimension {dimension} of a weight of shape {shape}")
    parameter = nn.Parameter(torch.empty(local, dtype=dtype))
    if dimension is not None:
        mark(parameter, TensorSlice(dimension, group.rank, group.size))
    return parameter


def mark(parameter: torch.Tensor, piece: TensorSlice) -> None:
    """Mark a parameter as a slice.

    Args:
        parameter: the slice, of any shape.
        piece: the mark, which replaces an earlier mark.
    """
    setattr(parameter, MARK, piece)


def draw(parameter: nn.Parameter, fill: Callable[[torch.Tensor], object], shape: tuple[int, ...]) -> None:
    """Fill a parameter with its slice of a whole tensor of `shape`, which `fill` writes.

    The whole tensor is drawn on every rank: with generators in equal states, ranks hold slices of the same tensor that
    a model on a single rank would draw. A parameter on the meta device is not drawn.
    """
    if parameter.is_meta:
        return
    piece = slice_of(parameter)
    with torch.no_grad():
        whole = torch.empty(shape, dtype=torch.promote_types(parameter.dtype, torch.float32), device=parameter.device)
        fill(whole)
        parameter.copy_(whole if piece is None else piece.of(whole))


def cut_state_dict(module: nn.Module, whole: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Cut a whole state to this rank's slices, for `module` to load; other keys are unchanged.

    Raises: ValueError if a tensor cannot be cut into equal slices.
    """
    pieces = slices_of(module)
    return {key: pieces[key].of(value) if key in pieces else value for key, value in whole.items()}


def slices_of(module: nn.Module) -> dict[str, TensorSlice]:
    """Return the slice marks of a module's parameters, by state name; a tied parameter has one entry per name."""
    found = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        piece = slice_of(parameter)
        if piece is not None:
            found[name] = piece
    return found
