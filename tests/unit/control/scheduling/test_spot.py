"""Spot capacity: schedules from files, the times of changes, and the jobs that give up their hosts."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.base.errors import ContractError, Fault
from clary.control.scheduling.spot import (
    SpotSchedule,
    SpotUse,
    choose_reclaimed,
    load_schedule,
    parse_schedule,
    why_wait,
)

LINES = """
# a morning
0    4     # everything
60   1

90.5 0
120  4
120.5 4
"""


def parsed(text, **options):
    return parse_schedule(text, source="spot.txt", **options)


def trace(data, gap_s=600, **members):
    return json.dumps({"metadata": {"gap_seconds": gap_s, "region": "x"}, "data": data, **members})


def use(name, num_hosts, order, **options):
    return SpotUse(job_name=name, num_hosts=num_hosts, order=order, **options)


def test_a_line_sets_the_capacity_from_its_second_on_and_the_last_value_stays():
    schedule = parsed(LINES)
    seconds = [-5, 0, 59.9, 60, 90.4, 90.5, 119, 120, 1e9]
    assert [schedule.capacity_at(at) for at in seconds] == [4, 4, 4, 1, 1, 0, 0, 4, 4]


def test_the_next_change_is_reported_and_lines_that_repeat_a_value_are_no_change():
    schedule = parsed(LINES)
    assert [schedule.next_change_s(at) for at in (0, 59, 60, 100, 120, 1e9)] == [60, 60, 90.5, 120, None, None]


def test_a_time_scale_of_sixty_plays_an_hour_in_a_minute():
    schedule = parsed("0 2\n3600 0\n7200 3", time_scale=60.0)
    assert [schedule.capacity_at(at) for at in (59.9, 60, 119, 120)] == [2, 0, 0, 3]
    assert schedule.next_change_s(0) == 60


def test_a_public_trace_has_one_count_per_gap():
    schedule = parsed(trace([4, 4, 0, 0, 3.0, 4], gap_s=300, prices=[1.0]))
    assert schedule.starts_s == (0, 600, 1200, 1500)
    assert schedule.hosts == (4, 0, 3, 4)


def test_a_trace_of_zeros_and_ones_is_read_unchanged():
    assert parsed("\n " + trace([1, 0, 0, 1])).hosts == (1, 0, 1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "spot.txt: expected at least one line of SECONDS HOSTS, got none"),
        ("# nothing\n\n", "expected at least one line"),
        ("0 4\n60", "spot.txt, line 2: expected SECONDS HOSTS, got '60'"),
        ("0 4 5", "spot.txt, line 1: expected SECONDS HOSTS"),
        ("5 4", "spot.txt, line 1: the first line must give the hosts at second 0, got second 5"),
        ("0 4\n60 3\n60 2", "spot.txt, line 3: expected a time later than second 60, got 60"),
        ("0 4\n-1 3", "spot.txt, line 2: expected seconds from 0"),
        ("0 4\nnan 3", "spot.txt, line 2: expected seconds from 0"),
        ("0 4\ninf 3", "spot.txt, line 2: expected seconds from 0"),
        ("0 4\nx 3", "spot.txt, line 2: expected seconds from 0 to 1e+10, got 'x'"),
        ("0 -1", "spot.txt, line 1: expected a whole number of hosts from 0 to 1000000, got '-1'"),
        ("0 1.5", "expected a whole number of hosts"),
        ("0 nan", "expected a whole number of hosts"),
        ("0 9999999", "expected a whole number of hosts"),
        ("{", "spot.txt, line 1, column 2: not valid JSON"),
        ('{"data":\n [1,]}', "spot.txt, line 2"),
        ('{"metadata": {}, "data": [1]}', "metadata.gap_seconds: expected seconds above 0, got None"),
        ('{"metadata": [], "data": [1]}', "metadata.gap_seconds"),
        (trace([1], gap_s=0), "metadata.gap_seconds: expected seconds above 0, got 0"),
        (trace([1], gap_s=True), "metadata.gap_seconds"),
        (trace([]), "spot.txt: data: expected a list of at least one count of hosts"),
        (trace({"a": 1}), "data: expected a list of at least one count of hosts, got dict"),
        (trace([1, None]), "spot.txt: data[1]: expected a whole number of hosts"),
        (trace([True]), "spot.txt: data[0]: expected a whole number of hosts"),
        (trace([1, -2]), "spot.txt: data[1]"),
        pytest.param('{"metadata": {"gap_seconds": 1}, "data": [' + "1" * 5000 + "]}", "not valid JSON", id="long"),
        ("[" * 2 + "1", "spot.txt, line 1: expected SECONDS HOSTS"),
        pytest.param('{"a":' + "[" * 100_000, "not valid JSON", id="deep"),
    ],
)
def test_an_invalid_schedule_is_refused_with_line_or_member_and_the_expected_value(text, says):
    with pytest.raises(ContractError) as refused:
        parsed(text)
    assert says in refused.value.message
    assert refused.value.fault is Fault.USER


@pytest.mark.parametrize("scale", [0, -1, float("nan"), float("inf")])
def test_an_invalid_time_scale_is_refused(scale):
    with pytest.raises(ContractError, match="setting spot_time_scale"):
        parsed("0 1", time_scale=scale)


def test_a_schedule_file_is_read_with_its_scale_and_an_unreadable_one_is_named(tmp_path):
    path = tmp_path / "spot.txt"
    path.write_text("0 2\n10 0\n")
    assert load_schedule(path, time_scale=2.0) == SpotSchedule((0.0, 10.0), (2, 0), 2.0)
    path.write_bytes(b"0 2\n\xff\n")
    with pytest.raises(ContractError, match="expected UTF-8, got byte 0xff at offset 4"):
        load_schedule(path)
    with pytest.raises(ContractError, match=r"none\.txt: cannot be read: .*setting spot_schedule_file"):
        load_schedule(tmp_path / "none.txt")


counts = st.lists(st.integers(0, 5), min_size=1, max_size=20)


@given(counts=counts, gap_s=st.integers(1, 600), scale=st.sampled_from([0.5, 1.0, 3.0, 60.0]))
def test_the_next_change_is_the_first_moment_with_another_value(counts, gap_s, scale):
    schedule = parsed(trace(counts, gap_s=gap_s), time_scale=scale)
    at = 0.0
    seen = [schedule.capacity_at(at)]
    while (change := schedule.next_change_s(at)) is not None:
        assert change > at
        assert schedule.capacity_at((at + change) / 2) == schedule.capacity_at(at), "nothing changes before"
        assert schedule.capacity_at(change) != schedule.capacity_at(at)
        at = change
        seen.append(schedule.capacity_at(at))
    assert seen == [value for value, _ in itertools.groupby(counts)]


@given(counts=counts)
def test_lines_and_a_trace_of_the_same_values_give_the_same_schedule(counts):
    lines = "\n".join(f"{10 * index} {count}" for index, count in enumerate(counts))
    assert parsed(lines) == parsed(trace(counts, gap_s=10))


def test_enough_capacity_reclaims_no_job():
    decision = choose_reclaimed([use("a", 2, 1), use("b", 2, 2)], 4)
    assert (decision.job_names, decision.reason) == ((), "")


def test_the_newest_job_is_reclaimed_first_with_a_reason():
    decision = choose_reclaimed([use("old", 2, 1), use("new", 2, 3), use("middle", 2, 2)], 3)
    assert decision.job_names == ("new", "middle")
    assert decision.reason == "spot capacity went down to 3 hosts and jobs hold 6: the newest jobs give theirs back"


def test_a_newer_job_is_spared_if_an_older_job_that_must_go_frees_enough():
    assert choose_reclaimed([use("large", 4, 1), use("small", 1, 2)], 1).job_names == ("large",)


def test_a_job_that_is_leaving_is_not_chosen_again_and_not_replaced_by_another():
    running = [use("old", 2, 1), use("leaving", 2, 2, is_leaving=True)]
    assert choose_reclaimed(running, 2).job_names == ()
    assert choose_reclaimed(running, 1).job_names == ("old",)


def test_a_capacity_of_zero_reclaims_all_jobs():
    assert choose_reclaimed([use("a", 1, 1), use("b", 3, 2)], 0).job_names == ("b", "a")


def test_a_job_starts_if_there_is_room_and_otherwise_waits_with_the_holders_named():
    running = [use("a", 3, 1), use("b", 1, 2, is_leaving=True)]
    assert why_wait(1, running, 5) == ""
    assert why_wait(2, running, 5) == ("Needs 2 hosts of spot capacity; 1 of 5 is free: a holds 3, b holds 1.")
    assert why_wait(1, [], 0) == "Needs 1 host of spot capacity; 0 of 0 are free."


def test_many_holders_are_counted_and_only_some_are_named():
    running = [use(f"j{index}", 1, index) for index in range(8)]
    assert why_wait(1, running, 8).endswith("j4 holds 1, 3 more jobs hold 3.")


uses = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 4), st.booleans()), max_size=8).map(
    lambda items: [use(f"job-{i}", hosts, order, is_leaving=leaving) for i, (hosts, order, leaving) in enumerate(items)]
)


def held(running):
    return sum(item.num_hosts for item in running)


@given(running=uses, capacity=st.integers(0, 30), seed=st.randoms())
def test_the_remaining_jobs_fit_and_no_chosen_job_could_have_stayed(running, capacity, seed):
    decision = choose_reclaimed(running, capacity)
    staying = [item for item in running if not item.is_leaving]
    left = [item for item in staying if item.job_name not in decision.job_names]
    assert held(left) <= capacity or not left
    assert set(decision.job_names) <= {item.job_name for item in staying}
    assert len(set(decision.job_names)) == len(decision.job_names)
    for item in staying:
        if item.job_name in decision.job_names:
            assert held(left) + item.num_hosts > capacity, "it could have stayed"
    shuffled = list(running)
    seed.shuffle(shuffled)
    assert choose_reclaimed(shuffled, capacity) == decision, "the order of the question does not matter"
    assert bool(decision.reason) == bool(decision.job_names)


@given(orders=st.lists(st.integers(), unique=True, max_size=8), capacity=st.integers(0, 8))
def test_of_jobs_with_one_host_exactly_the_newest_are_reclaimed(orders, capacity):
    running = [use(f"job-{order}", 1, order) for order in orders]
    num_too_many = max(0, len(orders) - capacity)
    newest = sorted(orders, reverse=True)[:num_too_many]
    assert choose_reclaimed(running, capacity).job_names == tuple(f"job-{order}" for order in newest)


@given(running=uses, capacity=st.integers(0, 30), num_hosts=st.integers(1, 6))
def test_a_job_that_may_start_is_not_reclaimed_at_once(running, capacity, num_hosts):
    if not why_wait(num_hosts, running, capacity):
        assert not choose_reclaimed([*running, use("late", num_hosts, 99)], capacity).job_names
