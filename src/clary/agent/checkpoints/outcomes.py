"""Reports of the mirror, as plain data: a light import for modules that only pass them on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clary.contract.agent_protocol import CheckpointFacts

_MAX_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class Listeners:
    """Listeners to the mirror's reports; called from its threads."""

    tell: Callable[[CheckpointFacts], None]  # facts, whenever they have changed
    say: Callable[[str], None]  # a line for the job's log
    note: Callable[[str], None]  # a warning for the log and for describe


@dataclass(frozen=True, kw_only=True)
class Flushed:
    """How the flush went."""

    missed: tuple[str, ...] = ()  # paths whose last state, or deletion, is in no set
    error: str = ""  # reason, if a path was missed
    torn: tuple[str, ...] = ()  # paths that were left out, since they, or files that belong to them, are not whole


def named(paths: Sequence[str]) -> str:
    """Return the first paths in words: `a, b and 7 more`."""
    more = len(paths) - _MAX_NAMED
    listed = ", ".join(ascii(path)[1:-1] for path in paths[:_MAX_NAMED])
    return f"{listed} and {more} more" if more > 0 else listed
