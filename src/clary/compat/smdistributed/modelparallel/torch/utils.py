"""`smp.utils`: what scripts take from the library beside its interface.

Source: amazon-sagemaker-examples, `bert/bert_example/modeling.py` and `gpt-j/fp16/fp16.py` under
`training/distributed_training/pytorch/model_parallel`, as callers.
"""

from __future__ import annotations

import torch

from clary.train.parallel.tensor.slices import slice_of

from .session import rank


def get_distribution_axis(obj: torch.Tensor | None) -> int | None:
    """Return the dimension along which tensor ranks hold slices of a parameter; None if each holds all of it."""
    piece = None if obj is None else slice_of(obj)
    return None if piece is None else piece.dimension


def rmsg(msg: object) -> str:
    """Return a message with this rank before it."""
    return f"rank {rank()}: {msg}"
