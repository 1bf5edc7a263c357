"""Translators of state dicts between the names of transformers' gptneo and the names of SMP."""

from clary.train.parallel.tensor.huggingface.reader import translators

translate_state_dict_to_hf_gptneo, translate_hf_state_dict_to_smdistributed_gptneo = translators("gpt_neo")
translate_hf_gptneo_state_dict_to_smdistributed = translate_hf_state_dict_to_smdistributed_gptneo  # in older scripts

__all__ = [
    "translate_hf_gptneo_state_dict_to_smdistributed",
    "translate_hf_state_dict_to_smdistributed_gptneo",
    "translate_state_dict_to_hf_gptneo",
]
