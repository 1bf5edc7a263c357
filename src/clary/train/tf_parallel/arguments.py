"""Arguments of a step: tensors that are cut into microbatches, their axes and their specs.

Where: `step` reads every call's arguments with it.

Tensors and arrays, also nested in lists, tuples and dicts, are cut along axis 0, or along the axis in
`input_split_axes`. Arguments in `non_split_inputs`, scalars, and values other than tensors and arrays are not cut:
every microbatch gets them whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from clary.train.parallel.arguments.argument_names import argument_names

_SLICE_METHOD = "smp_slice"


@dataclass(frozen=True)
class Argument:
    """One tensor among the arguments.

    Args:
        name: name of the argument that is or contains the tensor.
        axis: the axis along which it is cut; None for a whole tensor.
    """

    name: str
    axis: int | None


@dataclass(frozen=True)
class Arguments:
    """The arguments of one call.

    Args:
        structure: args and kwargs, with `Argument` in place of tensors.
        tensors: tensors in the order in which `structure` refers to them.
    """

    structure: Any
    tensors: list[Any]

    def specs(self, num_microbatches: int) -> list[Any]:
        """Return the spec (shape and type) of every tensor in a microbatch.

        Raises: ValueError for a known length that the number of microbatches does not divide.
        """
        return [
            _microbatch_spec(argument, tensor, num_microbatches)
            for argument, tensor in zip(self.found, self.tensors, strict=True)
        ]

    @property
    def found(self) -> list[Argument]:
        """The `Argument` of every tensor, in order."""
        return [one for one in tf.nest.flatten(self.structure) if isinstance(one, Argument)]

    def filled(self, tensors: Sequence[Any]) -> tuple[Any, Any]:
        """Return args and kwargs with the given tensors inserted."""
        left = iter(tensors)
        leaves = [next(left) if isinstance(one, Argument) else one for one in tf.nest.flatten(self.structure)]
        args, kwargs = tf.nest.pack_sequence_as(self.structure, leaves)
        return args, kwargs

    def key(self, num_microbatches: int) -> Any:
        """Return a key that is equal for calls that share a graph, by the rules of tf.function."""
        specs = iter(self.specs(num_microbatches))
        leaves: list[Any] = []
        for one in tf.nest.flatten(self.structure):
            if isinstance(one, Argument):
                spec = next(specs)
                shape = None if spec.shape.rank is None else tuple(spec.shape.as_list())
                leaves.append((one, shape, spec.dtype))
            else:
                leaves.append((type(one), one if _is_plain(one) else id(one)))
        return repr(tf.nest.map_structure(lambda _: 0, self.structure)), tuple(leaves)

    def cut(self, tensors: Sequence[Any], num_microbatches: int) -> list[list[Any]]:
        """Cut each of these eager tensors into one piece per microbatch.

        Raises: ValueError for a length that the number of microbatches does not divide.
        """
        pieces = []
        for argument, tensor in zip(self.found, tensors, strict=True):
            _check_length(argument, tensor.shape, num_microbatches)
            if argument.axis is None or num_microbatches == 1:
                pieces.append([tensor] * num_microbatches)
            else:
                pieces.append(tf.split(tensor, num_microbatches, argument.axis))
        return pieces


def read_arguments(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    whole: Collection[str],
    axes: Mapping[str, int],
    signature: Sequence[Any] | None,
) -> Arguments:
    """Read the arguments of a call of a step's function.

    Args:
        whole: names of arguments that are not cut.
        axes: the axis to cut, by name of an argument.
        signature: specs of the positional arguments of the whole batch, as for tf.function; determines the types of
            arrays.

    Raises:
        ValueError: a name that the function lacks, an axis that a tensor lacks, or a number of positional arguments
            that does not fit the signature.
        TypeError: an argument that cannot be cut, or has another type or shape than in the signature.
    """
    names = argument_names(function, args, {*whole, *axes})
    wanted = _wanted_types(names, args, signature)
    tensors: list[Any] = []

    def read(name: str, value: Any) -> Any:
        types = iter(wanted.get(name, ()))
        leaves = []
        for leaf in tf.nest.flatten(value):
            if _is_tensor(leaf):
                tensors.append(_as_tensor(leaf, name, next(types, None)))
                leaves.append(Argument(name, _axis(name, tensors[-1], whole, axes)))
            else:
                _refuse(leaf, name)
                leaves.append(leaf)
        return tf.nest.pack_sequence_as(value, leaves)

    positional = tuple(read(name, value) for name, value in zip(names, args, strict=True))
    # Sorted, as tf.nest flattens dicts.
    by_keyword = {name: read(name, kwargs[name]) for name in sorted(kwargs)}
    return Arguments((positional, by_keyword), tensors)


def _wanted_types(names: Sequence[str], args: Sequence[Any], signature: Sequence[Any] | None) -> dict[str, list[Any]]:
    if signature is None:
        return {}
    skipped = len(names) - len(signature)  # a signature omits a method's `self`
    if skipped not in (0, 1):
        raise ValueError(f"smp.step: input_signature has {len(signature)} places, and {len(args)} arguments were given")
    return {name: tf.nest.flatten(spec) for name, spec in zip(names[skipped:], signature, strict=True)}


def _is_tensor(leaf: Any) -> bool:
    return (tf.is_tensor(leaf) and not isinstance(leaf, tf.Variable)) or isinstance(leaf, np.ndarray | np.generic)


def _as_tensor(leaf: Any, name: str, spec: Any) -> Any:
    if isinstance(leaf, tf.SparseTensor | tf.RaggedTensor | tf.IndexedSlices):
        raise TypeError(
            f"smp.step: {name} is a {type(leaf).__name__}, which is not cut into microbatches: make it dense"
        )
    if not tf.is_tensor(leaf):
        leaf = tf.convert_to_tensor(leaf, None if spec is None else spec.dtype)
    if spec is not None and (leaf.dtype != spec.dtype or not spec.shape.is_compatible_with(leaf.shape)):
        raise TypeError(
            f"smp.step: {name} has type {leaf.dtype.name} and shape {leaf.shape}; input_signature has "
            f"{spec.dtype.name} and {spec.shape}"
        )
    return leaf


def _refuse(leaf: Any, name: str) -> None:
    if hasattr(leaf, _SLICE_METHOD):
        raise TypeError(
            f"smp.step: {name} is a {type(leaf).__name__} with smp_slice, which works only on PyTorch: on "
            "TensorFlow a step is traced once for all its microbatches, so pass the tensors of this "
            "object instead"
        )
    if isinstance(leaf, set | frozenset) and any(map(_is_tensor, leaf)):
        raise TypeError(f"smp.step: {name} is a set of tensors, which has no order here: pass a list")


def _axis(name: str, tensor: Any, whole: Collection[str], axes: Mapping[str, int]) -> int | None:
    if name in whole or tensor.shape.rank == 0:
        return None
    axis = axes.get(name, 0)
    rank = tensor.shape.rank
    if rank is not None and not -rank <= axis < rank:
        raise ValueError(f"smp.step: {name} has shape {tensor.shape}, which has no axis {axis}")
    return axis if axis >= 0 or rank is None else axis + rank


def _microbatch_spec(argument: Argument, tensor: Any, num_microbatches: int) -> Any:
    if argument.axis is None or tensor.shape.rank is None:
        return tf.TensorSpec(tensor.shape, tensor.dtype)
    _check_length(argument, tensor.shape, num_microbatches)
    lengths = tensor.shape.as_list()
    if lengths[argument.axis] is not None:
        lengths[argument.axis] //= num_microbatches
    return tf.TensorSpec(lengths, tensor.dtype)


def _check_length(argument: Argument, shape: Any, num_microbatches: int) -> None:
    length = None if argument.axis is None or shape.rank is None else shape[argument.axis]
    if length is not None and length % num_microbatches:
        raise ValueError(
            f"smp.step: {argument.name} has {length} along axis {argument.axis} (shape {shape}), no multiple of "
            f"{num_microbatches} microbatches: use batch(..., drop_remainder=True) with another size, or name it in "
            "non_split_inputs"
        )


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str | bytes)
