"""Reduces lists of gradients with the options of a tape or an optimizer."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from horovod.common.arrays import Call, Scaling
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.util import split_list
from horovod.tensorflow import operations
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.mpi_ops import Adasum, Average, _number, size_op
from horovod.tensorflow.reductions import _check_adasum, _reduce_sparse, grouped_allreduce
from horovod.tensorflow.util import reference

from clary.train.horovod import world
from clary.train.horovod.requests import Reduction

_ELASTIC = "HOROVOD_ELASTIC"


@dataclass(frozen=True, kw_only=True)
class GradientOptions:
    """The options that tapes and optimizers share.

    Args:
        name: name of the operations, equal on all ranks.
        predivide: divides each rank's gradients first, and multiplies averages.
        groups: number of groups, or lists of variables, whose gradients are reduced all at once; None for no groups.
        scales_local: whether gradients of local variables are divided by the number of ranks.
    Raises: ValueError for options that exclude each other.
    """

    name: str
    device_dense: str = ""
    device_sparse: str = ""
    compression: Any = Compression.none
    sparse_as_dense: bool = False
    op: int = Average
    predivide: float = 1.0
    groups: Any = None
    process_set: ProcessSet = global_process_set
    scales_local: bool = True

    def __post_init__(self) -> None:
        if self.predivide != 1.0 and self.op != Average:
            raise ValueError("gradient_predivide_factor not supported with op != Average")
        if self.groups is not None and not (isinstance(self.groups, list) or self.groups > 0):
            raise ValueError("groups should be a non-negative integer or a list of list of tf.Variable.")


def groups_of(num_groups: int, groups: Any) -> Any:
    """Return the groups, given by `groups` or by `num_groups`, the argument of Horovod before 0.22."""
    if num_groups:
        warnings.warn("Parameter `num_groups` has been replaced by `groups`.", DeprecationWarning, stacklevel=3)
    return num_groups if num_groups and groups is None else groups


class GradientReducer:
    """Reduces lists of gradients. Local variables keep the gradients of their rank."""

    def __init__(self, options: GradientOptions) -> None:
        self.options = options
        self._local: set[Any] = set()

    def keep_local(self, variable: Any) -> None:
        """Keep the gradients of a variable local to this rank."""
        self._local.add(reference(variable))

    def is_local(self, variable: Any) -> bool:
        """Whether `keep_local` was called with this variable."""
        return reference(variable) in self._local

    def __call__(self, gradients: list[Any], variables: Sequence[Any]) -> list[Any]:
        """Return the reduced gradients, in their order; None stays None.

        Args:
            gradients: tensors, tf.IndexedSlices or None; None at the same indices on all ranks.
            variables: variables to which the gradients belong, in the same order.
        Raises: ValueError for a process set that was not added.
        """
        results = list(gradients)
        shared = [place for place, one in enumerate(variables) if not self.is_local(one)]
        given = [place for place in shared if gradients[place] is not None]
        reduced = self._reduce([gradients[place] for place in given], [variables[place] for place in given])
        for place, gradient in zip(given, reduced, strict=True):
            results[place] = gradient
        if self._local and self.options.scales_local:
            num_ranks = size_op(_number(self.options.process_set))
            for place in set(range(len(variables))) - set(shared):
                results[place] = _over(results[place], num_ranks)
        return results

    def _reduce(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        options = self.options
        if not gradients or self._is_alone():
            return gradients
        if options.sparse_as_dense:
            gradients = [tf.convert_to_tensor(one) for one in gradients]
        if options.groups is None:
            return self._reduce_ungrouped(gradients)
        results: list[Any] = [None] * len(gradients)
        for number, places in enumerate(self._places_of_groups(variables)):
            reduced = grouped_allreduce(
                [gradients[place] for place in places],
                device_dense=options.device_dense,
                device_sparse=options.device_sparse,
                compression=options.compression,
                op=options.op,
                prescale_factor=self._scaling.before,
                postscale_factor=self._scaling.after,
                process_set=options.process_set,
                name=f"{options.name}.group_{number}",
            )
            for place, gradient in zip(places, reduced, strict=True):
                results[place] = gradient
        return results

    def _reduce_ungrouped(self, gradients: list[Any]) -> list[Any]:
        """Reduce all dense gradients in one operation, and all sparse gradients in another."""
        options = self.options
        is_sparse = [isinstance(one, tf.IndexedSlices) for one in gradients]
        reduction = Reduction(options.op)
        sparse = [one for one, sparse in zip(gradients, is_sparse, strict=True) if sparse]
        scales = (self._scaling.before, self._scaling.after)
        sparse_left = iter(_reduce_sparse(sparse, reduction, scales, options.device_sparse, options.process_set))
        dense = [tf.convert_to_tensor(one) for one, sparse in zip(gradients, is_sparse, strict=True) if not sparse]
        if dense:
            _check_adasum(reduction, options.process_set)
        with tf.device(options.device_dense):
            pairs = [options.compression.compress(one) for one in dense]
            call = Call(options.name, _number(options.process_set))
            reduced = operations.all_reduce([tensor for tensor, _ in pairs], call, self._scaling)
            dense_left = iter(
                [
                    options.compression.decompress(tensor, context)
                    for tensor, (_, context) in zip(reduced, pairs, strict=True)
                ]
            )
        return [next(sparse_left if sparse else dense_left) for sparse in is_sparse]

    @property
    def _scaling(self) -> Scaling:
        factor = self.options.predivide
        return Scaling(Reduction(self.options.op), 1.0 / factor, factor)

    def _is_alone(self) -> bool:
        """Whether no reduction is needed.

        Elastic programs trace a graph once and keep it when the ranks change, so this returns False for them.
        """
        process_set = self.options.process_set
        if os.environ.get(_ELASTIC, "0") not in ("", "0"):
            return False
        num_ranks = len(world.ranks_of(_number(process_set)))  # an error on ranks outside of the set too
        return not process_set.included() or num_ranks == 1

    def _places_of_groups(self, variables: list[Any]) -> list[list[int]]:
        groups = self.options.groups
        if not isinstance(groups, list):
            return [list(part) for part in split_list(range(len(variables)), groups) if part]
        place_of = {reference(variable): place for place, variable in enumerate(variables)}
        found = [[place_of.pop(reference(one)) for one in group if reference(one) in place_of] for group in groups]
        return [places for places in found if places] + [[place] for place in place_of.values()]


def check_op(op: int, *, averages_aggregated: bool = False) -> None:
    """Raise ValueError for Adasum with averaged sums of several backward passes."""
    if op == Adasum and averages_aggregated:
        raise ValueError("Adasum does not support average_aggregated_gradients == True")


def _over(gradient: Any, num_ranks: Any) -> Any:
    """Return a gradient divided by the number of ranks; return None for None."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values / tf.cast(num_ranks, gradient.values.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient / tf.cast(num_ranks, gradient.dtype)
