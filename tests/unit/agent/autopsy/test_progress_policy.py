"""Programs that hang, distinguished from programs with slow work."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.agent.autopsy.progress_policy import SPINNING_FACTOR, Reading, judge, quiet_s

LIMIT_S = 300.0


def readings(seconds, *, step_s=5.0, cpu=0.0, io=0.0, network=0.0, lines=0.0):
    """Return readings of a program whose counters grow by these amounts per second."""
    times = [index * step_s for index in range(int(seconds / step_s) + 1)]
    return [
        Reading(
            at_s=at,
            num_outputs=int(lines * at),
            cpu_s=cpu * at,
            io_bytes=int(io * at),
            network_bytes=int(network * at),
        )
        for at in times
    ]


def after(first, second):
    """Return the readings of `first` followed by the readings of `second`."""
    last = first[-1]
    return first + [
        Reading(
            at_s=last.at_s + item.at_s,
            num_outputs=last.num_outputs + item.num_outputs,
            cpu_s=last.cpu_s + item.cpu_s,
            io_bytes=last.io_bytes + item.io_bytes,
            network_bytes=last.network_bytes + item.network_bytes,
        )
        for item in second[1:]
    ]


def test_a_program_that_does_nothing_until_the_limit_is_idle():
    assert judge(readings(295), limit_s=LIMIT_S) is None
    found = judge(readings(300), limit_s=LIMIT_S)
    assert (found.kind, found.seconds) == ("idle", 300)


@pytest.mark.parametrize(
    "work",
    [
        {"lines": 0.01},  # one line in 100 s
        {"io": 1e6},  # a long checkpoint
        {"network": 1e4},  # an all-reduce of many layers
        {"cpu": 1.0},  # a slow first step, a compilation
        {"cpu": 0.1},  # an evaluation with a slow reader
    ],
)
def test_a_program_that_does_anything_is_not_idle(work):
    assert judge(readings(LIMIT_S * 3, **work), limit_s=LIMIT_S) is None


def test_a_program_that_only_burns_processor_time_gets_much_longer():
    assert judge(readings(LIMIT_S * SPINNING_FACTOR - 5, cpu=2.0), limit_s=LIMIT_S) is None
    found = judge(readings(LIMIT_S * SPINNING_FACTOR, cpu=2.0), limit_s=LIMIT_S)
    assert found.kind == "spinning"


def test_time_before_the_last_movement_does_not_count():
    worked = readings(1000, cpu=1.0, io=1e6)
    assert judge(after(worked, readings(290)), limit_s=LIMIT_S) is None
    found = judge(after(worked, readings(300)), limit_s=LIMIT_S)
    assert (found.kind, found.seconds) == ("idle", 300)


def test_a_spinning_program_that_falls_idle_is_judged_from_then():
    assert judge(after(readings(600, cpu=1.0), readings(280)), limit_s=LIMIT_S) is None
    assert judge(after(readings(600, cpu=1.0), readings(330)), limit_s=LIMIT_S).kind == "idle"


def test_keep_alive_messages_and_timers_are_no_progress():
    assert judge(readings(300, network=1000, cpu=0.01, io=50), limit_s=LIMIT_S).kind == "idle"


def test_a_process_that_ends_is_a_movement():
    before, now = readings(200, cpu=1.0)[-1], readings(300)[-1]
    assert judge([before, now], limit_s=10) is None


def test_a_program_without_readings_has_no_verdict():
    assert judge([], limit_s=LIMIT_S) is None


@given(
    st.lists(
        st.tuples(
            st.floats(0.1, 60), st.integers(0, 3), st.floats(0, 60), st.integers(0, 200_000), st.integers(0, 200_000)
        ),
        max_size=40,
    )
)
def test_no_counter_moved_during_a_reported_standstill(steps):
    history = [Reading(at_s=0, num_outputs=0, cpu_s=0, io_bytes=0, network_bytes=0)]
    for seconds, lines, cpu_s, io_bytes, network_bytes in steps:
        last = history[-1]
        history.append(
            Reading(
                at_s=last.at_s + seconds,
                num_outputs=last.num_outputs + lines,
                cpu_s=last.cpu_s + cpu_s,
                io_bytes=last.io_bytes + io_bytes,
                network_bytes=last.network_bytes + network_bytes,
            )
        )
    found = judge(history, limit_s=30)
    if found is not None:
        assert found.seconds >= 30
        begin = next(item for item in history if item.at_s >= history[-1].at_s - found.seconds - 1e-6)
        assert begin.num_outputs == history[-1].num_outputs
        assert found.kind == "spinning" or found.cpu_s <= 0.05 * found.seconds


def test_a_spinning_program_counts_as_quiet_long_before_a_standstill_is_reported():
    spins = readings(400, cpu=1.0)
    assert judge(spins, limit_s=LIMIT_S) is None
    assert quiet_s(spins) == 400
    assert quiet_s(after(readings(400, lines=1.0), spins)) == 400
    assert quiet_s(readings(400, cpu=1.0, io=50_000)) < 30
    assert quiet_s([]) == 0
