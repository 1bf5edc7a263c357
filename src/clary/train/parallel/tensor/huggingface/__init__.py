"""transformers' models over a tensor group: which of their modules are replaced, and their checkpoints.

A causal language model as a whole becomes a `DistributedTransformerLMHead`, a single block of one a
`DistributedTransformerLayer`, the encoder of BERT or RoBERTa a `DistributedTransformer`. Written against transformers
5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clary.train.parallel.tensor.huggingface import bert, gpt2, gptj, gptneo, gptneox, roberta
from clary.train.parallel.tensor.registry import Registration

_REGISTRATIONS: dict[str, Callable[[Any], list[Registration]]] = {
    "bert": bert.registrations,
    "gpt2": gpt2.registrations,
    "gpt_neo": gptneo.registrations,
    "gpt_neox": gptneox.registrations,
    "gptj": gptj.registrations,
    "roberta": roberta.registrations,
}
MODELS = {name: f"transformers.models.{name}.modeling_{name}" for name in _REGISTRATIONS}


def registrations(model: str, modeling: Any) -> list[Registration]:
    """Return what is known of the classes in one of the modules that `MODELS` names."""
    return _REGISTRATIONS[model](modeling)
