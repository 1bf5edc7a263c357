"""BERT."""

from __future__ import annotations

from typing import Any

from clary.train.parallel.tensor.huggingface.encoder import TRANSLATION, encoder_registration
from clary.train.parallel.tensor.huggingface.translation import StateDict
from clary.train.parallel.tensor.registry import Registration, Translations


def translate_state_dict_to_hf_bert(state_dict: StateDict, max_seq_len: int | None = None) -> StateDict:
    """Return transformers' state for that of a BERT whose encoder is distributed; `max_seq_len` has no effect."""
    return TRANSLATION.to_theirs(state_dict)


def translate_hf_state_dict_to_smdistributed_bert(state_dict: StateDict, max_seq_len: int | None = None) -> StateDict:
    """Return the state of a BERT whose encoder is distributed for transformers'; `max_seq_len` has no effect."""
    return TRANSLATION.to_ours(state_dict)


def registrations(modeling: Any) -> list[Registration]:
    """Return what becomes of the classes of transformers' module."""
    return [encoder_registration(modeling.BertEncoder, modeling, _translations)]


def _translations(config: Any) -> Translations:
    return translate_state_dict_to_hf_bert, translate_hf_state_dict_to_smdistributed_bert
