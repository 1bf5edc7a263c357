"""Reports of the mirror as plain data: a light import for modules that only forward them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clary.contract.agent_protocol import CheckpointFacts

_MAX_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class Listeners:
    """Callbacks for the mirror's reports; called from the mirror's threads."""

    tell: Callable[[CheckpointFacts], None]  # receives the facts whenever they have changed
    say: Callable[[str], None]  # receives a line for the job's log
    note: Callable[[str], None]  # receives a warning for the log and for describe


@dataclass(frozen=True, kw_only=True)
class Flushed:
    """Result of the flush."""

    missed: tuple[str, ...] = ()  # paths whose last state or deletion is in no set
    error: str = ""  # reason, if a path was missed
    torn: tuple[str, ...] = ()  # paths left out, since they or files of their group are not whole
    is_over_limit: bool = False  # whether the folder has more entries than a set takes; another attempt would too


def named(paths: Sequence[str]) -> str:
    """Return a phrase with the first paths: `a, b and 7 more`."""
    more = len(paths) - _MAX_NAMED
    listed = ", ".join(ascii(path)[1:-1] for path in paths[:_MAX_NAMED])
    return f"{listed} and {more} more" if more > 0 else listed
