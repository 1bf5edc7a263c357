"""Translators of state dicts between the names of transformers' gpt2 and the names of SMP."""

from functools import partial

from clary.train.parallel.tensor.huggingface.reader import block_hooks, translators

translate_state_dict_to_hf_gpt2, translate_hf_state_dict_to_smdistributed_gpt2 = translators("gpt2")
translate_hf_state_dict_to_smdistributed = translate_hf_state_dict_to_smdistributed_gpt2  # the older name
translate_layer_state_dict_to_hf_gpt2_block, translate_hf_block_state_dict_to_smdistributed = translators(
    "gpt2", of_blocks=True
)
get_hf_gpt2_transformer_layer_hooks = partial(block_hooks, "gpt2")

__all__ = [
    "get_hf_gpt2_transformer_layer_hooks",
    "translate_hf_block_state_dict_to_smdistributed",
    "translate_hf_state_dict_to_smdistributed",
    "translate_hf_state_dict_to_smdistributed_gpt2",
    "translate_layer_state_dict_to_hf_gpt2_block",
    "translate_state_dict_to_hf_gpt2",
]
