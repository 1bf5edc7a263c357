"""Norms of whole models and parameters that are spread over ranks.

Where: `steppers` replaces an optimizer's `norms` by `NormsOverRanks` once modules are placed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from clary.train.parallel.layout.mesh import Along
from clary.train.parallel.optimizers.norms import Norms
from clary.train.parallel.runtime import Runtime


class NormsOverRanks(Norms):
    """Norms over the ranks that hold one model. All these ranks step at the same time.

    Args:
        is_slice: whether a stepped parameter is a slice, whose other slices lie on other tensor ranks.
        groups: groups of ranks over which squares are summed.
    """

    def __init__(
        self, runtime: Runtime, is_slice: Callable[[torch.Tensor], bool], *, groups: Sequence[Along] = (Along.MP,)
    ) -> None:
        self._runtime = runtime
        self._is_slice = is_slice
        self._groups = groups
        self._num_tensor_ranks = runtime.groups.size(Along.TP)

    def of_model(self, parameters: Sequence[torch.Tensor], squares: torch.Tensor) -> torch.Tensor:
        """Return the square of the norm; parameters held by every tensor rank count once.

        Args: as `Norms.of_model`: squares [parameters]. All ranks of the groups call it.
        """
        shares = [1.0 if self._is_slice(one) else 1.0 / self._num_tensor_ranks for one in parameters]
        weights = torch.tensor(shares, dtype=torch.float64, device=squares.device)
        total = (squares.double() * weights).sum().to(self._runtime.device)
        for along in self._groups:
            if self._runtime.groups.size(along) > 1:
                dist.all_reduce(total, group=self._runtime.groups.process_group(along))
        return total

    def of_parameters(
        self, parameters: Sequence[torch.Tensor], found: torch.Tensor, *, are_largest: bool = False
    ) -> torch.Tensor:
        """Return squared norms or maxima of whole parameters; tensor ranks have gradients of the same parameters.

        Args: as `Norms.of_parameters`: values [parameters]. All ranks of a tensor group call it.
        """
        sliced = [place for place, one in enumerate(parameters) if self._is_slice(one)]
        if self._num_tensor_ranks == 1 or not sliced:
            return found
        own = found[sliced].contiguous()
        operation = dist.ReduceOp.MAX if are_largest else dist.ReduceOp.SUM
        dist.all_reduce(own, op=operation, group=self._runtime.groups.process_group(Along.TP))
        whole = found.clone()
        whole[sliced] = own
        return whole
