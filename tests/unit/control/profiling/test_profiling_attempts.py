"""Profiler rules over a job of several attempts: each attempt is judged alone, and the pauses are not judged."""

from datetime import UTC, datetime

import pytest
from profiled_runs import RUNNING, STEP_MS, noisy, run, series

from clary.control.profiling.measurements import HostShape, measurements_of
from clary.control.profiling.report.facts import ReportFacts
from clary.control.profiling.report.sections import header, span_of
from clary.control.profiling.rules import RULES

PAUSE = 4000  # rows between two attempts
ROWS = 2400  # rows of one attempt
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = 60 * 1000 // STEP_MS  # rows


def attempts(*columns, rows=ROWS, pause=PAUSE):
    """Return measurements of consecutive attempts; the columns of each attempt are as in `run`."""
    found, breaks, begin = [], [], 0
    for own in columns:
        for name, values in {"host/phase": [RUNNING] * rows, **own}.items():
            drawn = [values("algo-1", row) for row in range(rows)] if callable(values) else values
            found.append((name, series("algo-1", name, drawn, begin_ms=begin * STEP_MS)))
        begin += rows + pause
        breaks.append((begin - pause) * STEP_MS + STEP_MS)
    joined = {}
    for name, one in found:
        joined.setdefault(name, []).extend(one.points)
    whole = [type(one)(host="algo-1", name=name, points=tuple(points)) for name, points in joined.items()]
    shapes = [HostShape(name="algo-1", num_cpus=8.0, num_gpus=1)]
    end_ms = (begin - pause) * STEP_MS
    return measurements_of(whole, shapes, step_ms=STEP_MS, until_ms=end_ms, is_over=True, breaks_ms=breaks[:-1])


def facts_of(num_attempts):
    return ReportFacts(
        job_name="job",
        status="Completed",
        secondary_status="Completed",
        created_at=MOMENT,
        written_at=MOMENT,
        num_attempts=num_attempts,
    )


def late_steps(late):
    return {"rank-0/step_s": lambda host, row: None if row < late else 0.2}


def counted(steps_a_row):
    return {"rank-0/steps": lambda host, row: float(steps_a_row * row)}


def test_points_belong_to_the_attempt_that_they_were_measured_in():
    measured = attempts({"host/cpu_percent": noisy(50, 1)}, {"host/cpu_percent": noisy(70, 1)})
    first, second = measured.by_attempt(measured.points("algo-1", "host/cpu_percent"))
    assert (len(first), len(second)) == (ROWS, ROWS)
    assert measured.runs_ms == {
        0: (0, (ROWS - 1) * STEP_MS),
        1: ((ROWS + PAUSE) * STEP_MS, (2 * ROWS + PAUSE - 1) * STEP_MS),
    }
    assert measured.began_ms == 0
    assert [measured.attempt_of(at_ms) for at_ms in (0, ROWS * STEP_MS, 10**9)] == [0, 0, 1]


def test_the_wait_for_capacity_between_two_attempts_is_not_initialisation_time():
    # The first attempt is reclaimed before its first step; the second, an hour later, takes 5 minutes to its first.
    nothing, stepping = {"rank-0/steps": lambda host, row: 0.0}, late_steps(5 * MINUTE)
    stepping["rank-0/steps"] = lambda host, row: 0.0 if row < 5 * MINUTE else 1.0
    verdict = RULES["MaxInitializationTime"]().judge(attempts(nothing, stepping, rows=8 * MINUTE, pause=60 * MINUTE))
    assert not verdict.has_issue, verdict.detail
    assert verdict.detail == "attempt 1: there was no step for 8.0 minutes; the limit is 20"
    assert verdict.evidence[1] == "attempt 2: the first step came after 5.0 minutes"


def test_a_late_first_step_of_a_later_attempt_is_found():
    verdict = RULES["MaxInitializationTime"]().judge(attempts(late_steps(1), late_steps(25 * MINUTE), rows=26 * MINUTE))
    assert verdict.has_issue
    assert verdict.detail == "attempt 2: the first step came after 25.0 minutes; the limit is 20"


def test_memory_that_each_attempt_fills_again_is_no_increase():
    filling = {"gpu-0/memory_percent": lambda host, row: 5.0 if row < 300 else 80.0}
    judged = RULES["GPUMemoryIncrease"]().judge(attempts(filling, filling))
    assert (judged.was_judged, judged.has_issue) == (True, False), judged.detail
    leaking = {"gpu-0/memory_percent": lambda host, row: 40.0 if row < 1500 else 72.0}
    assert RULES["GPUMemoryIncrease"]().judge(attempts(filling, leaking)).has_issue


@pytest.mark.parametrize("name", ["LowGPUUtilization", "CPUBottleneck"])
def test_the_patience_of_a_rule_applies_to_each_attempt(name):
    # Starts of 8 minutes with an idle GPU and busy processors, then good work.
    starting = {
        "gpu-0/utilisation_percent": lambda host, row: 0.0 if row < 950 else 95.0,
        "host/cpu_percent": lambda host, row: 795.0 if row < 950 else 200.0,
    }
    rows = 1600
    verdict = RULES[name]().judge(attempts(*[starting] * 4, rows=rows))
    assert verdict.was_judged
    assert not verdict.has_issue, verdict.detail
    assert verdict.num_violations == 0


@pytest.mark.parametrize("name", ["LowGPUUtilization", "CPUBottleneck", "GPUMemoryIncrease"])
def test_attempts_that_are_all_too_short_are_not_judged_and_the_longest_is_named(name):
    short = {
        "gpu-0/utilisation_percent": noisy(5, 1),
        "gpu-0/memory_percent": noisy(5, 1),
        "host/cpu_percent": noisy(790, 0.1),
    }
    verdict = RULES[name]().judge(attempts(short, short, rows=600))
    assert not verdict.was_judged
    assert "600 datapoints so far" in verdict.detail


def test_a_step_count_that_restarts_with_each_attempt_gives_no_outliers():
    # A row is the mean of 100 steps that vary: single steps are far from it, but are no outliers.
    columns = counted(100) | {
        "rank-0/step_s": noisy(0.25, 0.01),
        "rank-0/step_max_s": lambda host, row: 0.52 if row % 20 == 0 else 0.4,
    }
    whole = run(columns, rows=4 * 400, num_gpus=0)
    assert not RULES["StepOutlier"]().judge(whole).has_issue
    cut = attempts(*[columns] * 4, rows=400)
    assert not RULES["StepOutlier"]().judge(cut).has_issue


def test_a_report_marks_the_bounds_of_attempts_unless_they_are_too_many():
    measured = attempts({}, {}, rows=10, pause=5)
    facts = facts_of(2)
    assert list(span_of(facts, measured).marks_ms) == [0, 9 * STEP_MS, 15 * STEP_MS, 24 * STEP_MS]
    many = attempts(*[{}] * 30, rows=2, pause=1)
    assert list(span_of(facts, many).marks_ms) == [0, (30 * 3 - 2) * STEP_MS]


@pytest.mark.parametrize(("number", "is_said"), [(1, False), (3, True)])
def test_a_report_shows_the_number_of_attempts_if_there_were_several(number, is_said):
    assert (f"<b>{number}</b><span>attempts</span>" in header(facts_of(number), [])) is is_said
