"""No pattern takes much longer than in proportion to the length of its text, for any hostile text (docs/adr/0049).

Every pattern of the service, the agent and their shared modules is tried on texts that nearly match it: those that
modules hold, and those in calls of `re` whose arguments are known without running the function around them. A text is a
matching text with a run inserted at each position, and an end that does not match. A run repeats one character, or a
matching text of a repeated group, such as ` -a=b` of `( -[^ ]+(=[^ ]+)?)*`. A pattern with several ways to match the
same run takes minutes, or never ends, before it finds that none of them matches.
"""

import ast
import importlib
import inspect
import pkgutil
import re
import time
from collections.abc import Iterator
from re import _constants as names  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]

import pytest

import clary.agent
import clary.base
import clary.contract
import clary.control

# Length of a run -> seconds that count as too long for it. Quadratic time stays far below these limits.
LIMITS_S = {50: 0.05, 200: 0.1, 800: 0.25}
UNIT_LIMITS_S = {18: 0.05, 200: 0.25}  # number of repeated texts of a group -> the same
MAX_UNITS = 6
MAX_PLACES = 24
MAX_RUNS = 5
# Function of `re` -> place of its flags among the arguments.
FLAGS_PLACE = {"compile": 1, "match": 2, "fullmatch": 2, "search": 2, "findall": 2, "finditer": 2, "split": 3}
FLAGS_PLACE |= {"sub": 4, "subn": 4}


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
        yield from patterns_in_calls(found.name, inspect.getsource(module), vars(module))


def patterns_in_calls(module: str, source: str, known: dict[str, object]) -> Iterator[tuple[str, re.Pattern]]:
    """Find the patterns of calls such as `re.search(PATTERN, text)` that literals and names of the module make up."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        whole, _, function = ast.unparse(node.func).rpartition(".")
        if whole != "re" or function not in FLAGS_PLACE:
            continue
        place = FLAGS_PLACE[function]
        given = [word.value for word in node.keywords if word.arg == "flags"] + node.args[place : place + 1]
        if isinstance(pattern := value_of(node.args[0], known), str | bytes):
            flags = value_of(given[0], known) if given else 0
            assert isinstance(flags, int), f"{module}:{node.lineno}: flags that are not known"
            yield f"{module}:{node.lineno}", re.compile(pattern, flags)


def value_of(node: ast.expr, known: dict[str, object]) -> object:
    """Return the value of literals and names of a module, joined by + | or an f-string; None for anything else."""
    allowed = (ast.Constant, ast.Name, ast.Attribute, ast.BinOp, ast.JoinedStr, ast.FormattedValue)
    marks = (ast.operator, ast.expr_context)
    if not all(isinstance(part, allowed + marks) for part in ast.walk(node)):
        return None
    if not {part.id for part in ast.walk(node) if isinstance(part, ast.Name)} <= known.keys():
        return None
    return eval(compile(ast.Expression(node), "<pattern>", "eval"), dict(known))


def sample(parsed, is_bytes: bool, fewest: int = 1) -> list[str]:
    """Return the characters of a text that the pattern matches; repeats are used `fewest` times, if that is allowed."""
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
            found += sample(inner, is_bytes, fewest) * max(fewest, min(least, 3))
        elif kind is names.SUBPATTERN:
            found += sample(value[3], is_bytes, fewest)
        elif kind is names.ATOMIC_GROUP:
            found += sample(value, is_bytes, fewest)
        elif kind is names.BRANCH:
            found += sample(value[1][0], is_bytes, fewest)
    return found


def units(parsed, is_bytes: bool) -> Iterator[str]:
    """Find the texts of several characters that a part of the pattern matches repeatedly."""
    for kind, value in parsed:
        if kind in (names.MAX_REPEAT, names.MIN_REPEAT, names.POSSESSIVE_REPEAT):
            _, most, inner = value
            unit = "".join(sample(inner, is_bytes))
            if most > 1 and len(unit) > 1:
                yield unit
            yield from units(inner, is_bytes)
        elif kind is names.SUBPATTERN:
            yield from units(value[3], is_bytes)
        elif kind is names.ATOMIC_GROUP:
            yield from units(value, is_bytes)
        elif kind is names.BRANCH:
            for branch in value[1]:
                yield from units(branch, is_bytes)


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
    parsed = parser.parse(text, pattern.flags & ~re.UNICODE if is_bytes else pattern.flags)
    wholes = [sample(parsed, is_bytes)]
    if r"\b" in text:  # an optional character before a word keeps the word from matching
        wholes.append(sample(parsed, is_bytes, fewest=0))
    for whole in wholes:
        runs = dict.fromkeys(list(dict.fromkeys([" ", *whole, "a", "0"]))[:MAX_RUNS], LIMITS_S)
        runs |= dict.fromkeys(list(dict.fromkeys(units(parsed, is_bytes)))[:MAX_UNITS], UNIT_LIMITS_S)
        for tried in texts(whole, runs):
            data = tried[0].encode("latin-1", "replace") if is_bytes else tried[0]
            if timed(pattern, data) > tried[1] and (seconds := timed(pattern, data)) > tried[1]:
                return tried[2], seconds
    return None


def texts(whole: list[str], runs: dict[str, dict[int, float]]) -> Iterator[tuple[str, float, str]]:
    """Find texts that nearly match, each with its limit in seconds and its description."""
    for place in range(min(len(whole), MAX_PLACES) + 1):
        begin = "".join(whole[:place])
        for run, limits_s in runs.items():
            for end in ("\x01", "".join(whole[place:]) + "\x01"):
                for length, limit_s in limits_s.items():
                    yield begin + run * length + end, limit_s, f"{begin!r} + {run!r} * {length} + {end!r}"


def timed(pattern: re.Pattern, text) -> float:
    started_s = time.process_time()
    pattern.fullmatch(text)
    pattern.search(text)
    return time.process_time() - started_s


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "package", [clary.base, clary.contract, clary.control, clary.agent], ids=lambda item: item.__name__
)
def test_no_pattern_is_slow_to_reject_a_text(package):
    # The name of a held pattern replaces the place of its call.
    held = {(pattern.pattern, pattern.flags): (name, pattern) for name, pattern in reversed([*patterns(package)])}
    found = {(name, pattern.pattern): pattern for name, pattern in held.values()}
    assert len(found) >= 2, "the patterns of a package were not found"
    slow = {name: told for (name, _), pattern in found.items() if (told := slow_text(pattern)) is not None}
    assert slow == {}


def test_patterns_in_calls_are_found():
    source = """
A = 'b'
def f(text, own):
    re.search(r"x\\s+", text)
    re.sub(f"{A}+" + "c", "", text, 0, re.DOTALL | re.IGNORECASE)
    re.findall(b"y", text, flags=re.ASCII)
    re.match(own, text)
    re.escape(text)
"""
    found = dict(patterns_in_calls("m", source, {"A": "b", "re": re}))
    assert [(name, item.pattern) for name, item in found.items()] == [("m:4", "x\\s+"), ("m:5", "b+c"), ("m:6", b"y")]
    assert found["m:5"].flags & (re.DOTALL | re.IGNORECASE) == re.DOTALL | re.IGNORECASE


def test_a_pattern_with_two_ways_to_match_a_run_is_slow():
    assert slow_text(re.compile(rb"<a>\s*([^<]*?)\s*</")) is not None


def test_a_pattern_with_two_ways_to_match_a_repeated_text_is_slow():
    option = rb"""(?:[\s,"']+-[^\s,"']+(?:[\s,"'=]+[^\s,"'-][^\s,"']*)??)*"""
    assert (
        slow_text(re.compile(rb"""^[^#\n]*?\bpip["']?""" + option + rb"""[\s,"']+install\b""", re.MULTILINE))
        is not None
    )
