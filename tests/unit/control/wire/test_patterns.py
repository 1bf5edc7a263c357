from __future__ import annotations

import time
from functools import cache

import pytest

from clary.control.wire.models import SERVICE_NAMES, service
from clary.control.wire.patterns import compile_pattern, skipped_patterns

PATTERN_BUDGET_S = 0.5  # CPU time for one value of the maximum length


@cache
def model_patterns() -> dict[str, int]:
    """Return every pattern of every service, with the maximum length of a value that is matched against it."""
    found: dict[str, int] = {}
    for name in SERVICE_NAMES:
        model = service(name).model
        for shape_name in model.shape_names:
            traits = model.shape_for(shape_name).metadata
            if "pattern" in traits:
                found[traits["pattern"]] = max(found.get(traits["pattern"], 0), min(traits.get("max", 4096), 4096))
    return found


def test_nearly_all_patterns_are_enforced_and_the_others_are_recorded():
    patterns = model_patterns()
    left_out = {pattern for pattern in patterns if compile_pattern(pattern) is None}
    print(f"{len(patterns)} patterns, left out: {len(left_out)}")
    assert left_out <= skipped_patterns.keys()
    assert len(left_out) <= len(patterns) // 20


@pytest.mark.parametrize(
    "pattern",
    [
        r"https://([.\-_a-zA-Z0-9]+/?){3,1016}",
        r"(a+)+",
        r"(a*)*b",
        r"(a|a)*b(c*)*",
        r"[a-z0-9]([-a-z0-9]*[a-z0-9]){0,39}?",
        r".*(?:[ \r\n\t].*)*",
        r"(\w+\s?)*",
    ],
)
def test_patterns_with_catastrophic_backtracking_are_left_out(pattern):
    assert compile_pattern(pattern) is None
    assert skipped_patterns[pattern] == "it can take exponential time"


@pytest.mark.parametrize("pattern", ["(", "[a", "a{2,1}", r"\p{NoSuchProperty}", "*a"])
def test_patterns_that_python_can_not_express_are_left_out(pattern):
    assert compile_pattern(pattern) is None
    assert skipped_patterns[pattern].startswith("Python cannot say it")


@pytest.mark.parametrize(
    ("pattern", "fitting", "unfitting"),
    [
        (r"[\p{L}\p{Nd}_-]+", "\u00e4\u4e2d_-\u0661", "a b"),
        (r"\p{Lu}x", "\u00c4x", "\u00e4x"),
        (r"\pLx", "\u00e4x", "1x"),
        (r"[\p{Alnum}\-]+", "aZ9-", "\u00e4"),
        (r"[\w-_]*", "a-_", "a b"),
        (r"[\u0020-\uD7FF\uD800\uDC00-\uDBFF\uDFFF]*", "a\U0001f600", "a\t"),
        (r"^[a-z]+$", "abc", "abc\n"),
        (r"\d+", "12", "\u0661"),
        (r"[a-zA-Z0-9](-*[a-zA-Z0-9])*", "a--b-c", "a-"),
        (r"arn:aws(-[\w]+)*:x", "arn:aws-us-gov:x", "arn:aws-:x"),
    ],
)
def test_java_patterns_match_as_in_java(pattern, fitting, unfitting):
    compiled = compile_pattern(pattern)
    assert compiled is not None
    assert compiled.fullmatch(fitting)
    assert not compiled.fullmatch(unfitting)


@pytest.mark.parametrize(
    "start", ["a", "arn:aws:sagemaker:us-west-2:000000000000:training-job/a", "https://a/", "s3://a/"]
)
@pytest.mark.parametrize("filler", ["a", "-", "1", "/", ":", "a-", "a.", " "])
def test_no_pattern_is_slow_on_a_hostile_value(start, filler):
    for pattern, max_length in model_patterns().items():
        compiled = compile_pattern(pattern)
        if compiled is None:
            continue
        value = (start + filler * max_length)[: max_length - 1] + "\0"
        started = time.process_time()
        compiled.fullmatch(value)
        assert time.process_time() - started < PATTERN_BUDGET_S, pattern
