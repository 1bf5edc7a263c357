"""Names under which versions of transformers pass a cache of keys and values to models, blocks and attentions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# `past_key_value` of attentions until 4.5x, `past_key_values` since; blocks of older GPTs say `layer_past`; `cache`
# everywhere since 5.24.
CACHES = ("past_key_values", "past_key_value", "layer_past", "cache")


def given_cache(arguments: Mapping[str, Any]) -> str | None:
    """Return the name of the cache among keyword arguments, or None."""
    return next((name for name in CACHES if arguments.get(name) is not None), None)
