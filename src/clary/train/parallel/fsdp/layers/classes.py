"""Classes that scripts name in wrapping policies; modules become instances of them and of their own class.

[Note: two classes] A policy may name `TransformerLayer` or the model's own decoder layer class; both must match. So a
layer's class becomes a subclass of both, and keeps its name, by which models look up classes.
Source: SageMaker developer guide, "SageMaker model parallel library v2 reference"; public training scripts name the
classes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import nn


class TransformerLayer(nn.Module):
    """A decoder layer of a model that `transform` supports."""


class TransformerLMHead(nn.Module):
    """A model that `transform` supports."""


# In the original, layers wrap Transformer Engine's layers; here both names mean one class.
TETransformerLayer = TransformerLayer


def become(module: nn.Module, role: type[nn.Module]) -> None:
    """Make a module an instance of `role` and of its own class; methods of `role` take precedence."""
    if not isinstance(module, role):
        own: Any = type(module)
        wanted: Any = role
        module.__class__ = wanted if issubclass(wanted, own) else _both(wanted, own)


@cache
def _both(role: Any, own: Any) -> Any:
    places = {"__module__": own.__module__, "__qualname__": own.__qualname__, "__doc__": own.__doc__}
    return type(own.__name__, (role, own), places)
