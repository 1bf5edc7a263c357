"""An embedding whose channels are cut over a tensor group."""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from clary.train.parallel.tensor.module import DistributedModule

DEFAULT_STD = 0.02


class DistributedEmbedding(DistributedModule):
    """An embedding whose channels are cut over the tensor group; `embedding_dim` is the whole size.

    `forward` takes ids [N, ...] and returns [N, ..., embedding_dim]. The weight is a slice along dimension 1. Other
    arguments are as in torch.nn.Embedding.

    Args:
        _weight: the whole initial weight.
        initializer_range: standard deviation of the normal distribution from which a weight is drawn.
        _skip_allgather: whether ids already contain the rows of all ranks, [M, ...]; see [Note: layouts] in `layout`.
        _skip_scatter_and_merge: whether to return [M, ..., embedding_dim/T], the input of larger distributed modules.

    Raises:
        NotDivisibleError: the tensor group does not divide `embedding_dim`.
        ValueError: `_weight` has another shape, or `padding_idx` is not an index.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: torch.Tensor | None = None,
        initializer_range: float = DEFAULT_STD,
        _skip_allgather: bool = False,
        _skip_scatter_and_merge: bool = False,
    ) -> None:
        super().__init__()
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(f"padding_idx is {padding_idx}; expected an index of one of {num_embeddings} embeddings")
        if _weight is not None and tuple(_weight.shape) != (num_embeddings, embedding_dim):
            raise ValueError(f"_weight has shape {tuple(_weight.shape)}; expected {(num_embeddings, embedding_dim)}")
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.max_norm, self.norm_type = max_norm, norm_type
        self.scale_grad_by_freq, self.sparse = scale_grad_by_freq, sparse
        self._takes_all_rows, self._returns_split = _skip_allgather, _skip_scatter_and_merge
        self.add_parameter(
            "weight",
            (num_embeddings, embedding_dim),
            1,
            partial(_draw, std=initializer_range, padding_row=self.padding_idx),
        )
        if _weight is not None:
            with torch.no_grad():
                self.weight.copy_(self._slices["weight"].of(_weight))

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - as torch.nn.Embedding
        """Return the embeddings of ids.

        Args:
            input: ids [N, ...], or a scalar; the result is [N, ..., embedding_dim], subject to the class's options.
        """
        rows = input.unsqueeze(0) if input.dim() == 0 else input
        ids = rows if self._takes_all_rows else self.layout.enter_rows(rows, rows.shape[0])
        if self.max_norm is not None:
            self._limit_norms(ids)
        found = functional.embedding(
            ids,
            self.weight,
            padding_idx=self.padding_idx,
            scale_grad_by_freq=self.scale_grad_by_freq,
            sparse=self.sparse,
        )
        if not self._returns_split:
            found = self.layout.leave_split(found)
        return found.squeeze(0) if input.dim() == 0 else found

    @torch.no_grad()
    def _limit_norms(self, ids: torch.Tensor) -> None:
        """Scale the looked-up rows down to `max_norm`, by the norms of whole rows."""
        used = ids.unique()
        rows = self.weight[used].float()
        group, is_largest = self.layout.group, self.norm_type == float("inf")
        norms = rows.abs().amax(1) if is_largest else rows.abs().pow(self.norm_type).sum(1)
        if group.size > 1:
            dist.all_reduce(norms, op=dist.ReduceOp.MAX if is_largest else dist.ReduceOp.SUM, group=group.process_group)
        if not is_largest:
            norms = norms.pow(1 / self.norm_type)
        factors = torch.where(norms > self.max_norm, self.max_norm / (norms + _SHORTEST), 1.0)
        self.weight[used] = (rows * factors.unsqueeze(1)).to(self.weight.dtype)

    def extra_repr(self) -> str:
        """Return the whole sizes as text."""
        return f"{self.num_embeddings}, {self.embedding_dim}"


_SHORTEST = 1e-7  # added to norms before the division, as torch does


def _draw(weight: torch.Tensor, *, std: float, padding_row: int | None) -> None:
    nn.init.normal_(weight, std=std)
    if padding_row is not None:
        weight[padding_row] = 0
