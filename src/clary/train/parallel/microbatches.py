"""Cutting of a batch into microbatches, and joining of their results.

Where: `step` cuts its arguments here, calls its function once per microbatch, and joins the results here.

Tensors may be nested in lists, tuples and dicts, in arguments also in sets; joined results keep their lists, tuples and
dicts.
Source: sagemaker-python-sdk `doc/api/training/smp_versions/latest/smd_model_parallel_pytorch.rst`, `smp.step`.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from clary.train.parallel.arguments.argument_names import argument_names

SLICE_METHOD = "smp_slice"  # method of objects that cut themselves: smp_slice(num_mb, mb, axis)


class StepOutput:
    """A returned tensor of the step's function: one tensor per microbatch, in order."""

    def __init__(self, outputs: Sequence[torch.Tensor]) -> None:
        self.outputs = list(outputs)

    def reduce_mean(self) -> torch.Tensor:
        """Return the mean over the microbatches."""
        return self.reduce_sum() / len(self.outputs)

    def reduce_sum(self) -> torch.Tensor:
        """Return the sum over the microbatches."""
        total = self.outputs[0]
        for output in self.outputs[1:]:
            total = total + output
        return total

    def concat(self) -> torch.Tensor:
        """Return the tensors concatenated along axis 0."""
        return torch.cat(self.outputs)

    def stack(self) -> torch.Tensor:
        """Return the tensors stacked along a new axis 0."""
        return torch.stack(self.outputs)

    def detach(self) -> StepOutput:
        """Return the same tensors detached from their graphs; transformers 5 and newer calls it."""
        return StepOutput([output.detach() for output in self.outputs])

    def __repr__(self) -> str:
        return f"StepOutput({self.outputs!r})"


def split_arguments(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
    num_microbatches: int,
    *,
    whole: Collection[str] = (),
    axes: Mapping[str, int] | None = None,
) -> list[tuple[list[Any], dict[str, Any]]]:
    """Cut the arguments of a function into one list and one dict of keywords for each microbatch.

    Tensors are cut along axis 0, or along the axis in `axes`, and objects with `smp_slice` cut themselves. Scalars,
    empty tensors and other values go to every microbatch uncut.

    Args:
        whole: names of arguments that are not cut.
        axes: the axis to cut, by name of an argument.

    Raises:
        ValueError: a length that the number of microbatches does not divide, an axis that a tensor lacks, or a name
            that the function lacks.
        TypeError: arguments that the function does not take.
    """
    named = argument_names(function, arguments, {*whole, *(axes or {})})

    def cut(name: str, value: Any) -> list[Any]:
        if name in whole:
            return [value] * num_microbatches
        return _split(value, num_microbatches, (axes or {}).get(name, 0), name)

    positional = [cut(name, value) for name, value in zip(named, arguments, strict=True)]
    by_keyword = {name: cut(name, value) for name, value in keywords.items()}
    return [
        ([pieces[number] for pieces in positional], {name: pieces[number] for name, pieces in by_keyword.items()})
        for number in range(num_microbatches)
    ]


def merge_results(results: Sequence[Any], *, detach: bool = False) -> Any:
    """Join the results of all microbatches: tensors into a `StepOutput`, other leaves into a list.

    Containers keep their type and structure, which must be the same in all microbatches. Sets are leaves, since they
    have no order by which elements of different microbatches could be joined.

    Args:
        detach: whether tensors are detached from their graphs.

    Raises: ValueError if microbatches returned different types, keys or numbers of values.
    """
    first = results[0]
    if isinstance(first, torch.Tensor):
        _check_alike(results, torch.Tensor)
        return StepOutput([result.detach() for result in results] if detach else results)
    if isinstance(first, Mapping):
        _check_alike(results, type(first))
        if any(list(result) != list(first) for result in results):
            raise ValueError(f"smp.step: microbatches returned different keys: {[list(result) for result in results]}")
        merged = {key: merge_results([result[key] for result in results], detach=detach) for key in first}
        return mapping_like(first, merged)
    if isinstance(first, list | tuple):
        _check_alike(results, type(first))
        if len({len(result) for result in results}) != 1:
            raise ValueError(f"smp.step: microbatches returned {[len(result) for result in results]} values")
        items = [merge_results(pieces, detach=detach) for pieces in zip(*results, strict=True)]
        return type(first)(*items) if hasattr(first, "_fields") else type(first)(items)
    return list(results)


def _split(value: Any, num_microbatches: int, axis: int, name: str) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return _split_tensor(value, num_microbatches, axis, name)
    if hasattr(value, SLICE_METHOD):
        return [getattr(value, SLICE_METHOD)(num_microbatches, number, axis) for number in range(num_microbatches)]
    if isinstance(value, Mapping):
        pieces = {key: _split(item, num_microbatches, axis, f"{name}[{key!r}]") for key, item in value.items()}
        return [
            mapping_like(value, {key: piece[number] for key, piece in pieces.items()})
            for number in range(num_microbatches)
        ]
    if isinstance(value, list | tuple | set | frozenset):
        cut = [_split(item, num_microbatches, axis, f"{name}[{place}]") for place, item in enumerate(value)]
        kind: Any = getattr(type(value), "_make", type(value))  # `_make` of a named tuple
        return [kind([pieces[number] for pieces in cut]) for number in range(num_microbatches)]
    return [value] * num_microbatches


def _split_tensor(tensor: torch.Tensor, num_microbatches: int, axis: int, name: str) -> list[torch.Tensor]:
    if tensor.dim() == 0:
        return [tensor] * num_microbatches
    if not -tensor.dim() <= axis < tensor.dim():
        raise ValueError(f"smp.step: {name} has shape {tuple(tensor.shape)}, which has no axis {axis}")
    if tensor.shape[axis] % num_microbatches:
        raise ValueError(
            f"smp.step: {name} has length {tensor.shape[axis]} along axis {axis} (shape "
            f"{tuple(tensor.shape)}), which is not a multiple of {num_microbatches} microbatches: change "
            "the batch size, or name it in non_split_inputs"
        )
    return list(tensor.chunk(num_microbatches, axis)) if tensor.shape[axis] else [tensor] * num_microbatches


def mapping_like(like: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """Return a mapping of the same type; a dataclass (transformers' outputs) is made from its fields."""
    kind: Any = type(like)
    if isinstance(like, defaultdict):
        return kind(like.default_factory, items)
    return kind(**items) if dataclasses.is_dataclass(like) else kind(items)


def _check_alike(results: Sequence[Any], kind: type) -> None:
    others = {type(result).__name__ for result in results if not isinstance(result, kind)}
    if others:
        raise ValueError(f"smp.step: microbatches returned {kind.__name__} and {', '.join(sorted(others))}")
