"""Translators of state dicts between the names of transformers' llama and the names of SMP, and hooks for its layers.

The module is an addition of Clary.
"""

from functools import partial

from clary.train.parallel.tensor.huggingface.reader import block_hooks, translators

translate_state_dict_to_hf_llama, translate_hf_state_dict_to_smdistributed_llama = translators("llama")
get_hf_llama_transformer_layer_hooks = partial(block_hooks, "llama")

__all__ = [
    "get_hf_llama_transformer_layer_hooks",
    "translate_hf_state_dict_to_smdistributed_llama",
    "translate_state_dict_to_hf_llama",
]
