"""Translators of state dicts between the names of transformers' gptj and the names of SMP."""

from clary.train.parallel.tensor.huggingface.reader import translators

translate_state_dict_to_hf_gptj, translate_hf_gptj_state_dict_to_smdistributed_gptj = translators("gptj")
# Aliases that scripts for other versions of SMP import.
translate_hf_gptj_state_dict_to_smdistributed = translate_hf_gptj_state_dict_to_smdistributed_gptj
translate_hf_state_dict_to_smdistributed_gptj = translate_hf_gptj_state_dict_to_smdistributed_gptj

__all__ = [
    "translate_hf_gptj_state_dict_to_smdistributed",
    "translate_hf_gptj_state_dict_to_smdistributed_gptj",
    "translate_hf_state_dict_to_smdistributed_gptj",
    "translate_state_dict_to_hf_gptj",
]
