"""The blocks that a query reads, and the points that result from them."""

import pytest
from series_tables import START_MS, measured, rows

from clary.base.errors import ContractError
from clary.control.series.queries import (
    COARSE_MS,
    FINE_MS,
    MAX_POINTS,
    ROWS_MS,
    BlockFacts,
    PointGatherer,
    SeriesQuery,
    choose,
)
from clary.control.series.rollups import fold

HOUR_MS = 3_600_000


def ask(**changes):
    return SeriesQuery(
        **{"job_name": "job", "start_ms": START_MS, "end_ms": START_MS + HOUR_MS, "step_ms": 60_000} | changes
    )


def block(number, step_ms, first_minute, end_minute, *, is_rolled=False, host="algo-1", attempt=1):
    return BlockFacts(
        number=number,
        attempt=attempt,
        host=host,
        step_ms=step_ms,
        is_rolled=is_rolled,
        first_row=first_minute * 120,
        start_ms=START_MS + first_minute * 60_000,
        end_ms=START_MS + end_minute * 60_000,
    )


def chosen(blocks, query):
    return {choice.block.number: (choice.until_ms - START_MS) // 60_000 for choice in choose(blocks, query)}


@pytest.mark.parametrize(
    ("step_ms", "level_ms"),
    [
        (100, ROWS_MS),
        (9_999, ROWS_MS),
        (10_000, FINE_MS),
        (15_000, ROWS_MS),
        (60_000, FINE_MS),
        (123_456, FINE_MS),
        (300_000, COARSE_MS),
        (310_000, FINE_MS),
        (3_600_000, COARSE_MS),
        (3_333_333, COARSE_MS),
    ],
)
def test_the_coarsest_step_that_is_fine_enough_is_read(step_ms, level_ms):
    assert ask(step_ms=step_ms).level_ms == level_ms


def test_a_coarse_query_reads_roll_ups_and_rows_that_are_not_rolled_up_yet():
    blocks = [
        block(1, ROWS_MS, 0, 29, is_rolled=True),
        block(2, FINE_MS, 0, 29),
        block(3, ROWS_MS, 30, 40),
    ]
    assert chosen(blocks, ask()) == {2: 60, 3: 60}
    assert chosen(blocks, ask(step_ms=300_000)) == {2: 60, 3: 60}


def test_a_fine_query_reads_rows_and_roll_ups_for_the_time_before_them():
    blocks = [
        block(1, COARSE_MS, 0, 50, is_rolled=True),
        block(2, FINE_MS, 20, 50, is_rolled=True),
        block(3, ROWS_MS, 40, 50, is_rolled=True),
    ]
    assert chosen(blocks, ask(step_ms=1_000)) == {3: 60, 2: 40, 1: 20}
    assert chosen(blocks, ask()) == {2: 60, 1: 20}
    assert chosen(blocks, ask(step_ms=300_000)) == {1: 60}


def test_blocks_are_chosen_for_each_host_and_attempt_separately():
    blocks = [
        block(1, FINE_MS, 0, 10, is_rolled=True),
        block(2, ROWS_MS, 5, 10, is_rolled=True, host="algo-2"),
        block(3, FINE_MS, 5, 10, is_rolled=True, host="algo-2"),
        block(4, FINE_MS, 0, 4, is_rolled=True, host="algo-2", attempt=2),
    ]
    assert chosen(blocks, ask(step_ms=1_000)) == {1: 60, 2: 60, 4: 60}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"step_ms": 0}, "at least 1 ms"),
        ({"end_ms": START_MS}, "start before end"),
        ({"step_ms": 1}, f"at most {MAX_POINTS}"),
        ({"names": "[a-z]*"}, "patterns"),
        ({"host": "algo-1\0"}, "no name of a job or a host"),
        ({"job_name": "a/b"}, "no name of a job or a host"),
        ({"names": "*" * 13}, "wildcards"),
        ({"names": "a" * 201}, "characters"),
    ],
)
def test_queries_without_a_bounded_result_are_refused(changes, words):
    with pytest.raises(ContractError, match=words):
        ask(**changes)


def test_names_are_patterns_separated_by_commas():
    query = ask(names="rank-*/cpu_percent,host/memory_*")
    wanted = ["rank-0/cpu_percent", "rank-12/cpu_percent", "host/memory_bytes"]
    assert [name for name in [*wanted, "host/cpu_percent", "rank-0/memory_bytes"] if query.wants(name)] == wanted


def test_points_have_minimum_maximum_mean_count_and_last_value():
    gatherer = PointGatherer(ask(step_ms=2_000, names="host/x"))
    gatherer.add("algo-1", rows({"host/x": [1.0, 5.0, None, 3.0, 9.0]}), until_ms=2**60)
    (series,) = gatherer.result()
    first, second = series.points
    assert (series.host, series.name) == ("algo-1", "host/x")
    assert (first.at_ms, first.least, first.greatest, first.mean, first.count, first.last) == (START_MS, 1, 5, 3, 3, 3)
    assert (second.at_ms - START_MS, second.mean, second.count) == (2_000, 9, 1)


def test_a_step_that_spans_two_blocks_gives_one_point():
    gatherer = PointGatherer(ask(names="host/x"))
    gatherer.add("algo-1", fold(rows({"host/x": [1.0] * 30}), FINE_MS), until_ms=2**60)
    gatherer.add("algo-1", rows({"host/x": [4.0] * 15}, start_ms=START_MS + 15_000), until_ms=2**60)
    (series,) = gatherer.result()
    (point,) = series.points
    assert (point.least, point.greatest, point.mean, point.count, point.last) == (1, 4, 2, 45, 4)


def test_a_result_that_grows_too_long_is_refused():
    gatherer = PointGatherer(ask(step_ms=500, end_ms=START_MS + 40_000_000))
    for host in range(3):
        gatherer.add(f"algo-{host}", measured(7_200), until_ms=2**60)
    with pytest.raises(ContractError, match=f"more than {MAX_POINTS} points"):
        gatherer.add("algo-3", measured(7_200), until_ms=2**60)


def test_hosts_and_ranks_are_sorted_by_their_numbers():
    gatherer = PointGatherer(ask())
    for host in ("algo-10", "algo-2"):
        gatherer.add(host, rows({"rank-11/x": [1.0], "rank-2/x": [1.0]}), until_ms=2**60)
    assert [(one.host, one.name) for one in gatherer.result()] == [
        ("algo-2", "rank-2/x"),
        ("algo-2", "rank-11/x"),
        ("algo-10", "rank-2/x"),
        ("algo-10", "rank-11/x"),
    ]
