"""A bound on the number of values in JSON that a program has written, checked before it is parsed. Pure.

Where: `wandb_records` and `progress_words` call it. Python makes an object of each value: 8 MiB of `{},` take 250 MB,
in the agent, which the host's memory limit does not bound.
"""

from __future__ import annotations


def may_have_more_values(document: bytes, most: int) -> bool:
    """Return whether a JSON document may have more values than `most`; separators within texts count too."""
    return document.count(b",") + document.count(b"]") + document.count(b"}") > most
