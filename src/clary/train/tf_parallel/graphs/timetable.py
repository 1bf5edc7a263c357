"""A rank's timetable: the levels at which it computes, and the messages before and after each level. Pure.

Where: `plan` makes a timetable for its rank; ranks exchange its levels and message numbers, which `order` needs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from clary.train.tf_parallel.graphs.nodes import Graph, Output
from clary.train.tf_parallel.graphs.work import Message, Share, Work


@dataclass(frozen=True)
class Timetable:
    """One rank's levels.

    Args:
        levels: the levels at which it computes or receives a message, ascending.
        receives: by level, the messages that must arrive before the level.
        sends: by level, the messages to send after the level.
    """

    levels: tuple[int, ...]
    receives: Mapping[int, tuple[Message, ...]]
    sends: Mapping[int, tuple[Message, ...]]

    def share(self, waits: tuple[tuple[int, int], ...]) -> Share:
        """Return the level numbers and message numbers of this rank, which other ranks need.

        Args:
            waits: as in `Share`.
        """
        return Share(
            {level: tuple(one.number for one in self.receives.get(level, ())) for level in self.levels},
            {level: tuple(one.number for one in self.sends.get(level, ())) for level in self.levels},
            waits,
        )


def make_timetable(
    nodes: Graph, work: Work, levels: Mapping[str, int], results: Collection[Output], part: int
) -> Timetable:
    """Return the timetable of the rank that holds `part`.

    Args:
        levels: levels of all operations.
        results: the results of the step that the rank needs.
    """
    uses = _first_uses(nodes, work, levels, results)
    receives: dict[int, tuple[Message, ...]] = {}
    sends: dict[int, tuple[Message, ...]] = {}
    for one in work.messages:
        if one.target == part:
            # Not before the message can arrive, even if only the step's results need it.
            level = max(uses.get(one.output, 0), levels[one.output.node] + 1)
            receives[level] = (*receives.get(level, ()), one)
        if one.source == part:
            level = levels[one.output.node]
            sends[level] = (*sends.get(level, ()), one)
    own = {levels[name] for name in work.runs if not nodes[name].is_fed} | set(receives)
    return Timetable(tuple(sorted(own)), receives, sends)


def _first_uses(nodes: Graph, work: Work, levels: Mapping[str, int], results: Collection[Output]) -> dict[Output, int]:
    """Return, for each result, the first level at which this rank needs it."""
    last = max((levels[name] for name in work.runs), default=0)
    uses = dict.fromkeys(results, last)
    for name in work.runs:
        for one in nodes[name].inputs:
            uses[one] = min(uses.get(one, last), levels[name])
    return uses
