"""The interface of an adapter for TensorFlow, which is not supported yet.

Where: `smdistributed.dataparallel.tensorflow` will ask `adapter` for one. It needs nothing of TensorFlow's own runtime:
`communicator` takes the memory behind `tensor.numpy()`.
Source: SageMaker's API reference of smdistributed.dataparallel.tensorflow, versions 1.0 to 1.2.
"""

from __future__ import annotations

from typing import Any, Protocol

from clary.train._native.errors import CollectiveError
from clary.train._native.interface import ReduceOp


class TensorFlowAdapter(Protocol):
    """One process of a TensorFlow job."""

    def init(self) -> None:
        """Form the group of all ranks; a second call is an error."""

    def size(self) -> int:
        """Return the number of ranks."""

    def rank(self) -> int:
        """Return the index of this one."""

    def allreduce(self, tensor: Any, *, param_index: int, num_params: int, op: ReduceOp = ReduceOp.AVG) -> Any:
        """Reduce a gradient over all ranks and return the result as a tensor.

        Args:
            param_index: of the gradient among `num_params`: what is fused follows from it, equally on all ranks.
        """

    def oob_allreduce(self, tensor: Any, *, op: ReduceOp = ReduceOp.AVG) -> Any:
        """Reduce any other tensor, a loss for example, at once; return the result as a tensor."""

    def broadcast(self, tensor: Any, *, root_rank: int) -> Any:
        """Return the root's tensor on all ranks."""


def adapter() -> TensorFlowAdapter:
    """Return the adapter of this process.

    Raises: CollectiveError, always for now.
    """
    raise CollectiveError(
        "TensorFlow is not supported by Clary's collectives yet: use tf.distribute.MultiWorkerMirroredStrategy, or "
        "exchange numpy arrays with clary.train.collective.adapters.numpy",
        retryable=False,
    )
