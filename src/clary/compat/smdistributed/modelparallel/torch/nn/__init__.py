"""`smp.nn`: modules whose parameters are split among the ranks of a tensor group."""

from clary.train.parallel.tensor.attention import DistributedAttentionLayer
from clary.train.parallel.tensor.embedding import DistributedEmbedding
from clary.train.parallel.tensor.flash_layers import FlashAttentionLayer
from clary.train.parallel.tensor.layernorm import FusedLayerNorm
from clary.train.parallel.tensor.linear import DistributedLinear
from clary.train.parallel.tensor.lm_head import DistributedTransformerLMHead
from clary.train.parallel.tensor.module import DistributedModule
from clary.train.parallel.tensor.output import DistributedTransformerOutputLayer
from clary.train.parallel.tensor.transformer import DistributedTransformer, DistributedTransformerLayer

from . import huggingface

__all__ = [
    "DistributedAttentionLayer",
    "DistributedEmbedding",
    "DistributedLinear",
    "DistributedModule",
    "DistributedTransformer",
    "DistributedTransformerLMHead",
    "DistributedTransformerLayer",
    "DistributedTransformerOutputLayer",
    "FlashAttentionLayer",
    "FusedLayerNorm",
    "huggingface",
]
