"""Traces of benchmark `spot`: generated from a seed with the statistics of a public trace, read, and evaluated."""

import json
import statistics
from pathlib import Path

import pytest
from benchmarks.job_life.spot_traces import GAP_S, Trace, generate, load

from clary.control.scheduling.spot import parse_schedule

TRACE = Trace(gap_s=10, hosts=(4, 4, 2, 4, 0, 5))


def test_the_time_with_enough_hosts_is_summed_between_two_moments():
    assert TRACE.length_s == 60
    assert TRACE.available_s(4, 0, 60) == 40
    assert TRACE.available_s(4, 15, 35) == 10
    assert TRACE.available_s(5, 0, 55) == 5
    assert TRACE.available_s(4, 60, 99) == 0


def test_interruptions_and_changes_are_counted_for_a_number_of_hosts():
    assert (TRACE.num_interruptions(4), TRACE.num_interruptions(2), TRACE.num_interruptions(5)) == (2, 1, 0)
    assert [TRACE.next_change_s(at_s) for at_s in (0, 20, 45, 50)] == [20, 30, 50, None]
    assert TRACE.cut(25 / 3600).hosts == (4, 4, 2)


def test_a_generated_trace_is_a_schedule_that_the_service_can_play(tmp_path):
    made = generate(hours=48, num_hosts=4, seed=3)
    assert made == generate(hours=48, num_hosts=4, seed=3) != generate(hours=48, num_hosts=4, seed=4)
    path = tmp_path / "trace.json"
    path.write_text(made.as_json())
    assert load(path) == made
    schedule = parse_schedule(path.read_text(), source="trace.json", time_scale=60.0)
    for index, hosts in enumerate(made.hosts):
        assert schedule.capacity_at((index + 0.5) * GAP_S / 60) == hosts


def test_generated_traces_have_the_availability_and_interruptions_of_the_public_one():
    days = 27
    traces = [generate(hours=24 * days, num_hosts=4, seed=seed) for seed in range(40)]
    shares = [trace.available_s(4, 0, trace.length_s) / trace.length_s for trace in traces]
    assert statistics.mean(shares) == pytest.approx(0.79, abs=0.04)
    assert statistics.mean(trace.num_interruptions(4) for trace in traces) == pytest.approx(126, rel=0.2)


@pytest.mark.parametrize("content", ["", "{}", json.dumps({"metadata": {"gap_seconds": 1}, "data": ["x"]})])
def test_an_invalid_trace_file_is_refused_by_name(tmp_path, content):
    path = Path(tmp_path / "wrong.json")
    path.write_text(content)
    with pytest.raises(SystemExit, match=r"wrong\.json: expected a trace as in docs/spot\.md"):
        load(path)
