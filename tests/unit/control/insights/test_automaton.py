"""Regular expressions of queries: the same matches as `re`, in time linear in the line."""

import random
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clary.control.insights.automaton import MAX_STATES, Automaton
from clary.control.insights.errors import QueryTooLarge
from clary.control.insights.expression_parts import BadExpression

LINE = "a" * 65_536
ATOMS = st.sampled_from(["a", "b", "A", "1", " ", ".", r"\d", r"\w", r"\s", r"\W", "[a-c]", "[^a]", "[^ab1]", r"\."])
EDGES = st.sampled_from(["^", "$", r"\b", r"\B", r"\A"])


def larger(inner):
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "*?", "{2,}"])).map(
            lambda two: f"({two[0]}){two[1]}"
        ),
    )


EXPRESSIONS = st.recursive(st.one_of(ATOMS, EDGES), larger, max_leaves=6)


@given(expression=EXPRESSIONS, text=st.text("abAB1 .", min_size=1, max_size=12), flags=st.sampled_from(["", "(?i)"]))
@settings(max_examples=300, deadline=None)
def test_an_automaton_has_the_same_matches_as_re(expression, text, flags):
    expected = re.search(flags + expression, text, re.ASCII) is not None
    assert Automaton(flags + expression).matches(text) is expected


@pytest.mark.parametrize(
    ("expression", "text", "is_found"),
    [
        ("ERROR|WARN", "a WARN b", True),
        ("(?i)error", "Error", True),
        (r"(?i)[^e]rror", "ERROR", False),
        (r"loss[=:]\s*\d+\.\d+", "step 7 loss= 0.25", True),
        (r"^step \d+$", "step 12", True),
        (r"^step \d+$", "a step 12", False),
        (r"\bfail\b", "to fail.", True),
        (r"\bfail\b", "failed", False),
        (r"gr(?i:ö)ß+", "größe", True),
        ("日本.*語", "日本の言語", True),
        ("", "", True),
    ],
)
def test_common_expressions_match_as_expected(expression, text, is_found):
    assert Automaton(expression).matches(text) is is_found


@pytest.mark.parametrize("expression", ["(a+)+$b", "a.*a.*a.*x", "(a|a)*b", "a*a*a*a*b", "(a?){40}a{40}b", "(.*)*x"])
def test_matching_time_is_linear_in_the_length_of_the_line(expression):
    begun = time.process_time()
    assert not Automaton(expression).matches(LINE)
    assert time.process_time() - begun < 2, "a line of 64 KiB takes hundredths of a second"


def test_an_expression_with_too_many_states_is_refused():
    letters = "".join(random.Random(1).choices("ab", k=20_000))
    begun = time.process_time()
    with pytest.raises(QueryTooLarge, match=f"more than {MAX_STATES} states"):
        Automaton("a[ab]{100}c").matches(letters)
    assert time.process_time() - begun < 5


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("(", "unterminated"),
        ("a{2,1}", "min repeat greater"),
        ("x" * 2000, "2000 characters"),
        ("((((a{9}){9}){9}){9}){9}", "too large"),
        ("(){1000000000}", "too large"),
        ("a{99999999999999}", "too large|overflow"),
        ("(" * 499 + ")" * 499, "deeply|too large"),
        (r"(a)\1", "back references"),
        ("(?=a)", "look ahead"),
        ("(?<!a)b", "look ahead"),
        ("(?>a)", "atomic"),
        ("a++", "possessive"),
    ],
)
def test_unsupported_syntax_is_refused_with_a_reason(expression, reason):
    with pytest.raises(BadExpression, match=reason):
        Automaton(expression)


@given(st.text(max_size=40))
@settings(deadline=None)
def test_any_text_is_an_expression_or_refused(text):
    refusal = "none"
    try:
        Automaton(text)
    except BadExpression as error:
        refusal = str(error)
    assert refusal
