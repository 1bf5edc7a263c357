"""Regular expressions whose matching time is linear in the text, for every expression.

Where: `reading` makes an automaton of each expression of a query; `conditions` matches it against texts of lines.

Python's `re` tries paths one after the other: `a.*b.*x` takes seconds for a line of 4 KiB and hours for a line of 64
KiB, while the whole service waits. An automaton follows all paths at once. Its states are created on demand; a state is
a set of places in the expression (`expression_parts`) and the kind of the preceding character. A short expression
without a choice runs in `re`, which is much faster and bounded as well.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field

from clary.control.insights.errors import QueryTooLarge
from clary.control.insights.expression_parts import Edge, Parts, Surroundings, compile_parts

MAX_STATES = 1_000  # of one automaton; a match that needs more states fails
_CACHED_CODES = 256  # transitions of characters below this code are cached


@dataclass(eq=False)
class _State:
    """Places that may be reached, as bits, and the states that characters lead to."""

    places: int
    before: Edge
    by_character: dict[str, _State] = field(default_factory=dict)
    by_class: dict[tuple[object, ...], _State] = field(default_factory=dict)


class Automaton:
    """One regular expression.

    Args:
        expression: text in the syntax of Python's `re`, without lookaround and back references.

    Raises: BadExpression, a ValueError that names the problem.
    """

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self._parts: Parts = compile_parts(expression)
        self._plain = _compiled(expression) if self._parts.has_no_choice else None
        self._states: dict[tuple[int, Edge], _State] = {}
        self._found = _State(0, Edge.BORDER)
        self._begin = self._state(self._parts.begin, Edge.BORDER)

    def matches(self, text: str) -> bool:
        """Whether the expression matches somewhere in a text.

        Raises: QueryTooLarge if it needs more states than are allowed.
        """
        if self._plain is not None:
            return self._plain.search(text) is not None
        state, found = self._begin, self._found
        for character in text:
            following = state.by_character.get(character)
            if following is None:
                following = self._step(state, character)
            if following is found:
                return True
            state = following
        return self._parts.ends_in(state.places, Surroundings(state.before, Edge.BORDER))

    def _step(self, state: _State, character: str) -> _State:
        parts = self._parts
        after = parts.edge_of(character)
        kind = parts.class_of(character)
        following = state.by_class.get((after, kind))
        if following is None:
            reached = parts.reached(state.places, Surroundings(state.before, after))
            if parts.has_end(reached):
                following = self._found
            else:
                # A match may begin after any character.
                following = self._state(parts.moved(reached, kind) | parts.begin, after)
            state.by_class[after, kind] = following
        if ord(character) < _CACHED_CODES:
            state.by_character[character] = following
        return following

    def _state(self, places: int, before: Edge) -> _State:
        known = self._states.get((places, before))
        if known is not None:
            return known
        if len(self._states) >= MAX_STATES:
            raise QueryTooLarge(
                f"the regular expression /{self.expression[:200]}/ needs more than {MAX_STATES} states for these "
                f"lines: make it simpler, with smaller counts"
            )
        return self._states.setdefault((places, before), _State(places, before))


def _compiled(expression: str) -> re.Pattern[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # silences the warning that `[[` may change its meaning
        return re.compile(expression, re.ASCII)
