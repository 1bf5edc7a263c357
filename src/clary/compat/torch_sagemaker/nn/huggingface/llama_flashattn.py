"""`LlamaFlashAttention`."""

from clary.train.parallel.fsdp.layers.llama_attention import LlamaFlashAttention

__all__ = ["LlamaFlashAttention"]
