"""Translators of state dicts between the names of transformers' gptneox and the names of SMP."""

from clary.train.parallel.tensor.huggingface.reader import translators

translate_state_dict_to_hf_gptneox, translate_hf_state_dict_to_smdistributed_gptneox = translators("gpt_neox")

__all__ = [
    "translate_hf_state_dict_to_smdistributed_gptneox",
    "translate_state_dict_to_hf_gptneox",
]
