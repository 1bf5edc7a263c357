"""`smdistributed.modelparallel.torch.utils`: two functions that public scripts import.

AWS does not document them. Scripts call `get_distribution_axis` for every parameter with a master copy; they import
`rmsg` and never call it, so its effect is Clary's choice.
Source: amazon-sagemaker-examples of 2022 (Apache-2.0), `gpt-j/fp16/fp16.py` and `bert/bert_example/modeling.py` under
`training/distributed_training/pytorch/model_parallel`, which call these functions.
"""

from __future__ import annotations

import torch

from clary.train.parallel.tensor.slices import dimension_of

from .session import rank

__all__ = ["get_distribution_axis", "rmsg"]


def get_distribution_axis(parameter: torch.Tensor | None) -> int | None:
    """Return the dimension along which tensor ranks hold slices of a parameter of the model.

    Args:
        parameter: parameter of any shape; None is allowed, as for a missing bias.

    Returns: None if every tensor rank holds the whole parameter. The slices along the dimension have equal lengths and
    form the parameter in the order of tensor ranks.
    """
    return None if parameter is None else dimension_of(parameter)


def rmsg(message: object) -> str:
    """Return a message that begins with this process's rank, for logs.

    Raises: RuntimeError before `smp.init`.
    """
    return f"rank {rank()}: {message}"
