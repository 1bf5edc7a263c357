"""Translators of state dicts between the names of transformers' roberta and the names of SMP."""

from clary.train.parallel.tensor.huggingface.reader import translators

translate_state_dict_to_hf_roberta, translate_hf_state_dict_to_smdistributed_roberta = translators("roberta")
translate_state_dict_to_smdistributed = translate_hf_state_dict_to_smdistributed_roberta  # as documented

__all__ = [
    "translate_hf_state_dict_to_smdistributed_roberta",
    "translate_state_dict_to_hf_roberta",
    "translate_state_dict_to_smdistributed",
]
