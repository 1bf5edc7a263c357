"""No pattern takes much longer than in proportion to the length of its text, for any hostile text (docs/adr/0049).

Every compiled pattern of the service, the agent and their shared modules is tried on texts that nearly match it: a
matching text with a run of one character inserted at each position, and an end that does not match. A pattern with
several ways to match the same run takes minutes, or never ends, before it finds that none of them matches.
"""

import importlib
import pkgutil
import re
import time
from collections.abc import Iterator
from re import _constants as names  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]

import pytest

import clary.agent
import clary.contract
import clary.control

# Length of a run -> seconds that count as too long for it. Quadratic time stays far below these limits.
LIMITS_S = {50: 0.05, 200: 0.1, 800: 0.25}
MAX_PLACES = 24
MAX_RUNS = 5


def patterns(package) -> Iterator[tuple[str, re.Pattern]]:
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if found.name.endswith("__main__") or ".shims" in found.name:
            continue
        module = importlib.import_module(found.name)
        for name, value in vars(module).items():
            values = (
                value if isinstance(value, tuple | list) else value.values() if isinstance(value, dict) else [value]
            )
            for item in values:
                if isinstance(item, re.Pattern):
                    yield f"{found.name}.{name}", item


def sample(parsed, is_bytes: bool) -> list[str]:
    """Return the characters of a text that the pattern matches; `repeats` are used once."""
    found: list[str] = []
    for kind, value in parsed:
        if kind is names.LITERAL:
            found.append(chr(value))
        elif kind is names.NOT_LITERAL:
            found.append("b" if value == ord("a") else "a")
        elif kind is names.ANY:
            found.append("a")
        elif kind is names.IN:
            found.append(member(value))
        elif kind in (names.MAX_REPEAT, names.MIN_REPEAT, names.POSSESSIVE_REPEAT):
            least, _, inner = value
            found += sample(inner, is_bytes) * max(1, min(least, 3))
        elif kind is names.SUBPATTERN:
            found += sample(value[3], is_bytes)
        elif kind is names.ATOMIC_GROUP:
            found += sample(value, is_bytes)
        elif kind is names.BRANCH:
            found += sample(value[1][0], is_bytes)
    return found


def member(items) -> str:
    """Return a character that belongs to a character class."""
    if items[0][0] is names.NEGATE:
        taken = {chr(value) for kind, value in items if kind is names.LITERAL}
        return next(letter for letter in "a b0-.,\"'" if letter not in taken)
    kind, value = items[-1]
    if kind is names.LITERAL:
        return chr(value)
    if kind is names.RANGE:
        return chr(value[0])
    return {names.CATEGORY_SPACE: " ", names.CATEGORY_DIGIT: "0"}.get(value, "a")


def slow_text(pattern: re.Pattern) -> tuple[str, float] | None:
    """Return a text on which the pattern takes too long, shortened, and the seconds; None if there is no such text."""
    is_bytes = isinstance(pattern.pattern, bytes)
    text = pattern.pattern.decode("latin-1") if is_bytes else pattern.pattern
    whole = sample(parser.parse(text, pattern.flags & ~re.UNICODE if is_bytes else pattern.flags), is_bytes)
    runs = list(dict.fromkeys([" ", *whole, "a", "0"]))[:MAX_RUNS]
    for place in range(min(len(whole), MAX_PLACES) + 1):
        for run in runs:
            for end in ("\x01", "".join(whole[place:]) + "\x01"):
                for length, limit_s in LIMITS_S.items():
                    tried = "".join(whole[:place]) + run * length + end
                    data = tried.encode("latin-1", "replace") if is_bytes else tried
                    if timed(pattern, data) > limit_s and (seconds := timed(pattern, data)) > limit_s:
                        return f"{''.join(whole[:place])!r} + {run!r} * {length} + {end!r}", seconds
    return None


def timed(pattern: re.Pattern, text) -> float:
    started_s = time.process_time()
    pattern.fullmatch(text)
    pattern.search(text)
    return time.process_time() - started_s


@pytest.mark.timeout(300)
@pytest.mark.parametrize("package", [clary.contract, clary.control, clary.agent], ids=lambda item: item.__name__)
def test_no_pattern_is_slow_to_reject_a_text(package):
    found = {(name, pattern.pattern): pattern for name, pattern in patterns(package)}
    assert len(found) >= 9, "the patterns of a package were not found"
    slow = {name: told for (name, _), pattern in found.items() if (told := slow_text(pattern)) is not None}
    assert slow == {}
