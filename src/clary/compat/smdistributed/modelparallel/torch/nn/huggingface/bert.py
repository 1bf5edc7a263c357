"""Translators of state dicts between the names of transformers' bert and the names of SMP."""

from clary.train.parallel.tensor.huggingface.reader import translators

translate_state_dict_to_hf_bert, translate_hf_state_dict_to_smdistributed_bert = translators("bert")

__all__ = [
    "translate_hf_state_dict_to_smdistributed_bert",
    "translate_state_dict_to_hf_bert",
]
