"""The targets by name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module

Run = Callable[[bytes], None]

TARGETS = {
    "wire": "fuzz.wire_target",
    "signatures": "fuzz.signature_target",
    "s3": "fuzz.s3_target",
    "forms": "fuzz.form_target",
    "agents": "fuzz.agent_target",
    "options": "fuzz.options_target",
    "archives": "fuzz.archive_target",
    "heads": "fuzz.heads_target",
    "folders": "fuzz.folders_target",
}


def open_target(name: str) -> AbstractContextManager[Run]:
    """Return the context of one target; it yields a function that takes an input and raises for a finding."""
    opened: AbstractContextManager[Run] = import_module(TARGETS[name]).open_target()
    return opened
