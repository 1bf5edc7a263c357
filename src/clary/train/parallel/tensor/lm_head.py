"""A language model over a tensor group: embeddings, transformer layers, logits.

Source: as `attention`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from clary.train.parallel.tensor.embedding import DEFAULT_STD, DistributedEmbedding
from clary.train.parallel.tensor.layernorm import DEFAULT_EPSILON
from clary.train.parallel.tensor.module import DistributedModule, weight_fill
from clary.train.parallel.tensor.randomness import dropout_split
from clary.train.parallel.tensor.transformer import DistributedTransformer

if TYPE_CHECKING:
    from typing_extensions import Self  # `typing` has it since Python 3.11

IGNORED_LABEL = -100  # default of torch.nn.functional.cross_entropy


class DistributedTransformerLMHead(DistributedModule):
    """Embeddings of words, positions and optional token types, transformer layers, logits over the vocabulary.

    Arguments are the whole sizes. `more` are fields of `LayerSettings` and

        embedding_dropout_prob: dropout of the sum of the embeddings; `hidden_dropout_prob` by default.
        tie_input_output_embedding: whether logits use the word embedding's weight, True by default.
        use_lm_head_bias: whether logits have a bias, False by default.
        use_positional_embedding: True by default; if False, positions affect rotary embeddings alone.

    Raises: as `DistributedTransformerLayer`, and NotDivisibleError if the tensor group does not divide `hidden_size`.
    """

    def __init__(
        self,
        num_layers: int = 12,
        num_attention_heads: int = 32,
        attention_head_size: int = 32,
        hidden_size: int = 1024,
        intermediate_size: int = 4096,
        vocab_size: int = 30522,
        num_positions: int = 1024,
        attention_dropout_prob: float = 0.1,
        hidden_dropout_prob: float = 0.1,
        activation: str = "gelu",
        layernorm_epsilon: float = DEFAULT_EPSILON,
        num_token_types: int = 0,
        causal_mask_size: int | None = None,
        add_cross_attention: bool = False,
        add_lm_head: bool = True,
        initializer_range: float = DEFAULT_STD,
        use_normal_initialization: bool = False,
        pre_layernorm: bool = False,
        post_layernorm: bool = True,
        *,
        embedding_dropout_prob: float | None = None,
        tie_input_output_embedding: bool = True,
        use_lm_head_bias: bool = False,
        use_positional_embedding: bool = True,
        **more: Any,
    ) -> None:
        super().__init__()
        self.has_cross_attention = add_cross_attention
        self.is_causal = causal_mask_size is not None
        self.embedding_dropout_prob = hidden_dropout_prob if embedding_dropout_prob is None else embedding_dropout_prob

        def embedding(num_embeddings: int) -> DistributedEmbedding:
            return DistributedEmbedding(
                num_embeddings,
                hidden_size,
                initializer_range=initializer_range,
                _skip_allgather=True,
                _skip_scatter_and_merge=True,
            )

        self.word_embedding = embedding(vocab_size)
        self.position_embedding = embedding(num_positions) if use_positional_embedding else None
        self.token_type_embedding = embedding(num_token_types) if num_token_types else None
        self.transformer = DistributedTransformer(
            num_layers=num_layers,
            num_attention_heads=num_attention_heads,
            attention_head_size=attention_head_size,
            hidden_size=hidden_size,
            intermediate_size=intermediate_size,
            attention_dropout_prob=attention_dropout_prob,
            hidden_dropout_prob=hidden_dropout_prob,
            activation=activation,
            layernorm_epsilon=layernorm_epsilon,
            initializer_range=initializer_range,
            use_normal_initialization=use_normal_initialization,
            causal_mask_size=causal_mask_size,
            add_cross_attention=add_cross_attention,
            pre_layernorm=pre_layernorm,
            post_layernorm=post_layernorm,
            **more,
        ).be_inner()
        self.is_tied = tie_input_output_embedding
        self.lm_head: LogitsHead | None = None
        if add_lm_head:
            tied_to = self.word_embedding if self.is_tied else None
            self.lm_head = LogitsHead(
                vocab_size, hidden_size, tied_to=tied_to, bias=use_lm_head_bias, std=initializer_range
            )

    def forward(self, inputs: tuple[torch.Tensor | None, ...], *, num_items: torch.Tensor | int | None = None) -> Any:
        """Return logits [N, S, vocab_size]; with labels (loss, logits); without a head hidden states [N, S, H].

        Args:
            inputs: (input_ids [N, S], attention_mask [N, S], token_type_ids, position_ids, labels [N, S]); with
                cross-attention, cross_states [N, P, H] and cross_mask [N, P] precede the labels. All except the ids may
                be None. In masks, 1 marks a masked position. With a causal mask, labels are the tokens at the same
                positions, each predicted from the position before; without one, labels are the tokens to predict at
                their positions. Labels of -100 are ignored.
            num_items: number of items in the whole batch, of which the inputs are a part. If it is given, the loss is
                the sum over labels divided by `num_items`, instead of the mean.
        """
        input_ids, attention_mask, token_type_ids, position_ids, cross_states, cross_mask, labels = self._unpack(inputs)
        num_rows, layout = input_ids.shape[0], self.layout
        input_ids, attention_mask, token_type_ids, position_ids, cross_mask = (
            None if entry is None else layout.enter_rows(entry, num_rows)
            for entry in (input_ids, attention_mask, token_type_ids, position_ids, cross_mask)
        )
        assert input_ids is not None
        hidden = self._embed(input_ids, token_type_ids, position_ids)
        masks = [_to_scores(mask, hidden.dtype) for mask in (attention_mask, cross_mask)]
        entries: tuple[torch.Tensor | None, ...] = (hidden, masks[0])
        if self.has_cross_attention:
            entries = (hidden, None if cross_states is None else layout.enter(cross_states), *masks)
        hidden = self.transformer((*entries, position_ids))[0]
        if self.lm_head is None:
            return layout.leave(hidden)
        logits = self.lm_head(hidden)
        return logits if labels is None else (self._loss(logits, labels, num_items), logits)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        if self.is_tied and self.lm_head is not None:  # leaving the meta device splits a tied parameter in two
            self.lm_head.share_parameter("weight", self.word_embedding, "weight")
        return self

    def _embed(
        self, input_ids: torch.Tensor, token_type_ids: torch.Tensor | None, position_ids: torch.Tensor | None
    ) -> torch.Tensor:
        """Embed inputs as hidden states in the inside layout; channelwise operations run on this rank's slice."""
        hidden = self.word_embedding(input_ids)
        if self.position_embedding is not None:
            if position_ids is None:
                position_ids = torch.arange(input_ids.shape[1], device=input_ids.device).unsqueeze(0)
            hidden = hidden + self.position_embedding(position_ids)
        if token_type_ids is not None and self.token_type_embedding is not None:
            hidden = hidden + self.token_type_embedding(token_type_ids)
        probability = self.embedding_dropout_prob if self.training else 0.0
        return self.layout.from_split(dropout_split(hidden, probability, self.layout.group))

    def _loss(self, logits: torch.Tensor, labels: torch.Tensor, num_items: torch.Tensor | int | None) -> torch.Tensor:
        if self.is_causal:
            logits, labels = logits[:, :-1], labels[:, 1:]
        loss = functional.cross_entropy(
            logits.flatten(0, 1).float(),
            labels.flatten(),
            ignore_index=IGNORED_LABEL,
            reduction="mean" if num_items is None else "sum",
        )
        return loss if num_items is None else loss / num_items

    def _unpack(self, inputs: tuple[torch.Tensor | None, ...]) -> tuple[Any, ...]:
        """Return ids, mask, token types, positions, cross states, cross mask, labels; labels may be missing."""
        names = ["input_ids", "attention_mask", "token_type_ids", "position_ids", "labels"]
        if self.has_cross_attention:
            names[4:4] = ["cross_states", "cross_mask"]
        if len(inputs) not in (len(names), len(names) - 1) or inputs[0] is None:
            raise ValueError(
                f"DistributedTransformerLMHead takes one tuple ({', '.join(names)}); got {len(inputs)} values"
            )
        given = dict(zip(names, inputs, strict=False))
        order = (
            "input_ids",
            "attention_mask",
            "token_type_ids",
            "position_ids",
            "cross_states",
            "cross_mask",
            "labels",
        )
        return tuple(given.get(name) for name in order)


class LogitsHead(DistributedModule):
    """Logits over a vocabulary; the weight is cut by channels, the bias is whole on every rank.

    Args:
        tied_to: the embedding whose weight the head shares; None for a weight of its own.
    """

    def __init__(
        self, vocab_size: int, hidden_size: int, *, tied_to: DistributedEmbedding | None, bias: bool, std: float
    ) -> None:
        super().__init__()
        if tied_to is None:
            self.add_parameter("weight", (vocab_size, hidden_size), 1, weight_fill(hidden_size, std))
        else:
            self.share_parameter("weight", tied_to, "weight")
        if bias:
            self.add_parameter("bias", (vocab_size,), None, nn.init.zeros_)
        else:
            self.register_parameter("bias", None)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits of this rank's rows, [N, S, vocab_size], for hidden states in the inside layout."""
        logits = self.layout.leave_partial(functional.linear(self.layout.to_split(hidden), self.weight))
        return logits if self.bias is None else logits + self.layout.outside(self.bias)


def _to_scores(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """Convert a mask [M, S], in which 1 means masked, to an addend of scores, [M, 1, 1, S]."""
    if mask is None:
        return None
    return (mask.to(dtype) * torch.finfo(dtype).min)[:, None, None, :]
