"""Names of states of transformers' gptneo, to and from those of SMP."""

from clary.train.parallel.tensor.huggingface.gptneo import (
    translate_hf_state_dict_to_smdistributed_gptneo,
    translate_state_dict_to_hf_gptneo,
)

__all__ = [
    "translate_hf_state_dict_to_smdistributed_gptneo",
    "translate_state_dict_to_hf_gptneo",
]
