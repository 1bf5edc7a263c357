"""Queries over lines: the lines that are selected, their order, and the groups made of them."""

import json

import pytest

from clary.control.insights.errors import QueryTooLarge
from clary.control.insights.evaluation import MAX_GROUPS, MAX_RESULT_CHARACTERS, Evaluation
from clary.control.insights.lines import LogLine
from clary.control.insights.planning import plan_of

NOON_MS = 1_767_268_800_000  # 2026-01-01 12:00 UTC
MESSAGES = [
    "starting",
    "INFO step 1 loss=0.9",
    "ERROR disk full",
    "INFO step 2 loss=0.5",
    json.dumps({"step": 3, "loss": 0.25, "level": "info", "optimizer": {"lr": 1e-3}, "losses": [1, 2]}),
    json.dumps({"step": 10, "loss": 12, "level": "warn", "ok": True}),
]


def lines(messages=MESSAGES, step_ms=60_000):
    return [
        LogLine("0:group", f"job/algo-{1 + number % 2}", number // 2, NOON_MS + number * step_ms, NOON_MS, message)
        for number, message in enumerate(messages)
    ]


def run(text, some=None, *, limit=None):
    evaluation = Evaluation(plan_of(text, limit=limit))
    for line in some if some is not None else lines():
        evaluation.take(line, size_bytes=len(line.message))
    return [dict(row) for row in evaluation.rows()]


def kept(condition):
    """Return the numbers of the lines for which a condition holds."""
    shown = [row["@message"] for row in run(f"fields @message | filter {condition} | sort @timestamp")]
    return [MESSAGES.index(message) for message in shown]


def test_without_fields_time_and_message_are_shown_newest_first():
    rows = run("limit 2")
    assert [list(row) for row in rows] == [["@timestamp", "@message", "@ptr"]] * 2
    assert [row["@timestamp"] for row in rows] == ["2026-01-01 12:05:00.000", "2026-01-01 12:04:00.000"]
    assert len({row["@ptr"] for row in run("fields @message")}) == len(MESSAGES)


def test_every_field_of_a_line_can_be_shown():
    [row] = run("fields @timestamp, @ingestionTime, @logStream, @log, @message as text, step | filter step = 3")
    row.pop("@ptr")
    assert row == {
        "@timestamp": "2026-01-01 12:04:00.000",
        "@ingestionTime": "2026-01-01 12:00:00.000",
        "@logStream": "job/algo-1",
        "@log": "0:group",
        "text": MESSAGES[4],
        "step": "3",
    }


@pytest.mark.parametrize(
    ("condition", "numbers"),
    [
        ("@message = 'starting'", [0]),
        ("@message != 'starting'", [1, 2, 3, 4, 5]),
        ("@message like 'loss'", [1, 3, 4, 5]),
        ("@message like /loss=0\\.[5-9]/", [1, 3]),
        ("@message =~ /(?i)error|warn/", [2, 5]),
        ("@message not like /step/", [0, 2]),
        ("@message not like /step/ and not @message like 'disk'", [0]),
        ("@message like 'ERROR' or @message like 'starting' and step = 3", [2]),
        ("(@message like 'ERROR' or @message like 'starting') and not ispresent(step)", [0, 2]),
        ("@logStream = 'job/algo-2'", [1, 3, 5]),
        ("@logStream in ['job/algo-1', 'x']", [0, 2, 4]),
        (f"@timestamp >= {NOON_MS + 240_000}", [4, 5]),
        ("step > 9", [5]),
        ("step < '9'", [4]),
        ("loss <= 0.25", [4]),
        ("step in [3, 10.0]", [4, 5]),
        ("step not in [3]", [0, 1, 2, 3, 5]),
        ("level = 'info'", [4]),
        ("level != 'info'", [0, 1, 2, 3, 5]),
        ("level > 'j'", [5]),
        ("optimizer.lr < 0.01", [4]),
        ("losses.1 = 2", [4]),
        ("losses.7 = 2 or losses.x = 1 or optimizer = 1", []),
        ("ok = 'true'", [5]),
        ("ispresent(level)", [4, 5]),
        ("-1 < step", [4, 5]),
    ],
)
def test_filters(condition, numbers):
    assert kept(condition) == numbers


def test_an_alias_can_be_used_in_later_commands():
    rows = run("fields @message as text, bin(5m) as slot | filter text like 'INFO' | sort text desc")
    assert [row["text"][:11] for row in rows] == ["INFO step 2", "INFO step 1"]
    assert {row["slot"] for row in rows} == {"2026-01-01 12:00:00.000"}


def test_a_filter_may_follow_a_sort_and_fields_accumulate():
    rows = run("fields step | sort step desc | fields loss | filter ispresent(step) | limit 5")
    assert [(row["step"], row["loss"]) for row in rows] == [("10", "12"), ("3", "0.25")]
    assert [list(row) for row in run("fields step | display loss | filter step = 3")] == [["loss", "@ptr"]]


def test_numbers_sort_numerically_and_missing_values_come_first():
    assert [row.get("step") for row in run("fields step | sort step")] == [None, None, None, None, "3", "10"]
    assert [row.get("step") for row in run("fields step | sort step desc | limit 3")] == ["10", "3", None]


def test_a_sort_after_a_limit_orders_the_remaining_rows():
    rows = run("fields @message | limit 3 | sort @timestamp asc")
    assert [row["@message"] for row in rows] == MESSAGES[3:]


def test_lines_of_the_same_time_keep_their_order_in_both_directions():
    some = [LogLine("g", "s", number, NOON_MS, NOON_MS, str(number)) for number in range(20)]
    for order, expected in (("asc", range(3)), ("desc", (19, 18, 17))):
        rows = run(f"fields @message | sort @timestamp {order} | limit 3", some)
        assert [row["@message"] for row in rows] == [str(number) for number in expected]


def test_the_first_rows_are_right_among_many_lines():
    some = lines([f"n {number * 7919 % 10_007}" for number in range(10_007)], step_ms=1)
    rows = run("fields @message | sort @message desc | limit 2", some)
    assert [row["@message"] for row in rows] == ["n 9999", "n 9998"]
    assert len(run("fields @message", some)) == 10_000
    assert len(run("fields @message", some, limit=7)) == 7


def test_stats_count_by_field_and_by_time():
    assert run("stats count(*)") == [{"count(*)": "6"}]
    assert run("filter @message = 'none' | stats count(*) as n") == [{"n": "0"}]
    assert run("stats count(*) as n by @logStream | sort n desc, @logStream desc") == [
        {"@logStream": "job/algo-2", "n": "3"},
        {"@logStream": "job/algo-1", "n": "3"},
    ]
    assert run("stats count() by bin(3m)") == [
        {"bin(3m)": "2026-01-01 12:03:00.000", "count(*)": "3"},
        {"bin(3m)": "2026-01-01 12:00:00.000", "count(*)": "3"},
    ]
    assert run("stats count(*) by bin(1h) as hour, level | filter ispresent(level) | display level") == [
        {"level": "info"},
        {"level": "warn"},
    ]


def test_stats_of_numbers():
    [row] = run("stats count(loss) as n, sum(loss), avg(loss), min(loss), max(step), count_distinct(@logStream) as d")
    assert row == {
        "n": "2",
        "sum(loss)": "12.25",
        "avg(loss)": "6.125",
        "min(loss)": "0.25",
        "max(step)": "10",
        "d": "2",
    }
    assert run("stats avg(loss) by level | sort avg(loss) desc | limit 1") == [{"level": "warn", "avg(loss)": "12"}]


@pytest.mark.parametrize(
    "message",
    [
        "{" * 60_000,
        '{"a":' * 60_000,
        '{"loss": ' + "9" * 5000 + "}",
        '{"loss": 1e999}',
        '{"loss": NaN}',
        '{"loss": {"x": []}}',
        "{\udcff",
    ],
)
def test_hostile_json_has_no_members(message):
    assert run("filter ispresent(loss)", lines([message])) == []


def test_a_result_that_is_too_large_ends_the_query():
    long = "x" * (MAX_RESULT_CHARACTERS // 50)
    with pytest.raises(QueryTooLarge, match="fewer rows"):
        run("fields @message", lines([long] * 110))
    assert len(run("fields @message | limit 20", lines([long] * 110))) == 20
    with pytest.raises(QueryTooLarge, match="groups"):
        run("stats count(*) by n", lines([json.dumps({"n": number}) for number in range(MAX_GROUPS + 1)]))
    with pytest.raises(QueryTooLarge, match="count_distinct"):
        run("stats count_distinct(@message)", lines([f"{number}{'x' * 10_000}" for number in range(1000)]))
