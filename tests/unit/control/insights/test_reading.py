"""The query language: its forms, and refusals with their offset in the text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clary.control.insights import syntax
from clary.control.insights.errors import MalformedQuery
from clary.control.insights.planning import plan_of
from clary.control.insights.reading import MAX_DEPTH, MAX_EXPRESSIONS, MAX_TERMS, commands_of

PIECES = st.sampled_from(
    [
        *("fields", "display", "filter", "sort", "limit", "stats", "parse", "by", "as", "asc", "desc"),
        *("and", "or", "not", "like", "in", "ispresent", "bin", "count", "avg"),
        *("@timestamp", "@message", "@x", "loss", "`a b`", "n", "5", "5m", "1.5", "'a'", '"b"', "/a.*b/", "/(/"),
        *("(", ")", "[", "]", ",", "|", "*", "=", "!=", "=~", "<=", "-", "'", "/", "#", "\n", "\\", "é"),
    ]
)


@given(st.one_of(st.lists(PIECES, max_size=25).map(" ".join), st.text(max_size=60)))
@settings(max_examples=500, deadline=None)
def test_any_text_is_a_query_or_is_refused_with_an_offset(text):
    refusal = None
    try:
        plan_of(text)
    except MalformedQuery as error:
        refusal = error
    assert refusal is None or (refusal.message and 0 <= refusal.start <= refusal.end <= len(text))


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("", "", "a command"),
        ("fields @timestamp |", "", "a command"),
        ("parse @message '*' as a", "parse", "not offered"),
        ("filter @message like /a/ | dedup @message", "dedup", "not offered"),
        ("SELECT 1", "SELECT", "not offered"),
        ("fields @message sort", "sort", "and another command"),
        ("fields @nothing", "@nothing", "unknown field"),
        ("fields strlen(@message)", "strlen", "not offered"),
        ("stats pct(@x, 90)", "pct", "count_distinct"),
        ("filter @message like", "", "text in quotes"),
        ("filter @message like /a(/", "/a(/", "cannot be used"),
        ("filter @message like /(a)\\1/", "/(a)\\1/", "back references"),
        ("filter @message = 'a", "'a", "does not end"),
        ("filter a ~ 1", "~", "unexpected character"),
        ("filter 'a' like 'b'", "like", "expected a field in front"),
        ("filter a in 'b'", "'b'", "a list"),
        ("filter a in []", "]", "a number or a text"),
        ("filter (a = 1", "", r"'\)'"),
        ("limit 0", "0", "1 to 10000"),
        ("limit 10001", "10001", "1 to 10000"),
        ("limit 99999999999999999999", "99999999999999999999", "1 to 10000"),
        ("stats count(*) by bin(0m)", "0m", "a period"),
        ("stats count(*) by bin(5 months)", "5 months", "a period"),
        ("stats count(*) by bin(99999999w)", "99999999w", "a period"),
        ("stats count(*) | sort n", "n", r"the columns after 'stats' are count\(\*\)"),
        ("stats count(*) | fields @message", "fields @message", "choose columns with 'display'"),
        ("stats count(*) | stats count(*)", "stats count(*)", "one 'stats'"),
        ("stats count(*), count(*)", "stats count(*), count(*)", "the same name"),
        ("limit 5 | filter a = 1", "filter a = 1", "put it in front"),
        ("limit 5 | stats count(*)", "limit 5", "put it behind"),
        ("fields a as @b", "@b", "without '@'"),
    ],
)
def test_an_error_is_reported_with_its_offset(text, place, words):
    with pytest.raises(MalformedQuery, match=words) as refused:
        plan_of(text)
    start, end = refused.value.start, refused.value.end
    assert text[start:end] == place
    assert place or start == len(text)


@pytest.mark.parametrize(
    "text",
    [
        "filter " + "(" * (MAX_DEPTH + 1) + "a = 1" + ")" * (MAX_DEPTH + 1),
        "filter " + "(" * 9000,
        "filter " + "not " * 2000 + "a = 1",
        "filter " + " or ".join(["a = 1"] * MAX_TERMS),
        "filter a in [" + ",".join(["1"] * (MAX_TERMS + 1)) + "]",
        "filter " + " or ".join(["a like /x/"] * (MAX_EXPRESSIONS + 1)),
        "fields @message" + " " * 10_000,
    ],
)
def test_queries_are_bounded(text):
    with pytest.raises(MalformedQuery, match=r"at most|more than"):
        plan_of(text)


def test_case_comments_and_a_leading_bar_do_not_matter():
    commands = commands_of(
        """| FIELDS @message as text, `a b` # what is shown
        | filter @message LIKE 'it\\'s # not a comment' AND NOT a in [1, -2.5, "x"]
        | sort by @timestamp DESC, a
        | limit 7"""
    )
    fields, kept, sort, limit = commands
    assert [item.label for item in fields.items] == ["text", "a b"]
    like, negated = kept.condition.conditions
    assert like.pattern == "it's # not a comment"
    assert negated.condition.values == (1, -2.5, "x")
    assert [key.is_descending for key in sort.keys] == [True, False]
    assert limit.count == 7
    assert isinstance(kept, syntax.Filter)
