"""Schedules before they run: complete, without deadlock, with the idle time and the memory of their formulas."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.train.parallel.pipeline.schedule import Action, Kind, Schedule, ScheduleError, parse_action, simulate
from clary.train.parallel.pipeline.schedules import gpipe, interleaved, one_f_one_b, zb1p
from clary.train.parallel.pipeline.zero_bubble import zbv

SECONDS = {Kind.FORWARD: 1.0, Kind.BACKWARD: 2.0, Kind.INPUT: 1.0, Kind.WEIGHT: 1.0}
shapes = {"num_stages": st.integers(1, 8), "num_microbatches": st.integers(1, 20)}


def seconds_of(action):
    return SECONDS[action.kind]


def lists(*ranks):
    return tuple(tuple(map(parse_action, rank.split())) for rank in ranks)


def test_schedules_equal_the_lists_in_their_papers():
    assert gpipe(2, 2).ranks == lists("0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1")
    assert one_f_one_b(2, 3).ranks == lists("0F0 0F1 0B0 0F2 0B1 0B2", "1F0 1B0 1F1 1B1 1F2 1B2")
    assert zb1p(2, 3).ranks == lists("0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2", "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2")


@given(**shapes)
def test_gpipe_and_1f1b_are_idle_as_by_the_formula(num_stages, num_microbatches):
    for schedule in (gpipe, one_f_one_b):
        found = simulate(schedule(num_stages, num_microbatches), seconds_of)
        expected = (num_stages - 1) / (num_microbatches + num_stages - 1)
        assert found.idle == pytest.approx([expected] * num_stages)


@given(**shapes)
def test_zb1p_is_idle_a_third_as_long_with_enough_microbatches(num_stages, num_microbatches):
    plain, halved = (simulate(schedule(num_stages, num_microbatches), seconds_of) for schedule in (one_f_one_b, zb1p))
    assert halved.length_s <= plain.length_s
    if num_microbatches >= num_stages:
        assert halved.length_s == 3 * num_microbatches + num_stages - 1


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 4))
def test_interleaved_is_idle_as_by_the_formula(num_ranks, rounds, stages_a_rank):
    num_microbatches = rounds * num_ranks
    found = simulate(interleaved(num_ranks, num_microbatches, stages_a_rank=stages_a_rank), seconds_of)
    expected = (num_ranks - 1) / (stages_a_rank * num_microbatches + num_ranks - 1)
    assert found.idle == pytest.approx([expected] * num_ranks)


def test_interleaved_with_one_stage_per_rank_is_as_long_as_1f1b():
    one, other = interleaved(4, 8, stages_a_rank=1), one_f_one_b(4, 8)
    assert simulate(one, seconds_of).length_s == simulate(other, seconds_of).length_s


@given(st.integers(1, 8), st.integers(1, 24))
def test_zbv_is_as_short_as_its_first_forwards_allow(num_ranks, num_microbatches):
    found = simulate(zbv(num_ranks, num_microbatches), seconds_of)
    work = 6 * num_microbatches
    if num_microbatches >= num_ranks:
        assert found.length_s == work + num_ranks - 1
        assert found.idle == pytest.approx([(num_ranks - 1) / (work + num_ranks - 1)] * num_ranks)
    if num_microbatches >= 2 * num_ranks - 1:
        within = [begins[-1] + 1 - begins[0] - work for begins in found.begins]
        assert within == [max(0, num_ranks - 2 - 2 * rank) for rank in range(num_ranks)]


@given(st.integers(1, 8), st.integers(1, 24))
def test_zbv_has_the_shape_of_a_v_and_holds_no_more_than_1f1b(num_ranks, num_microbatches):
    schedule = zbv(num_ranks, num_microbatches)
    for rank in range(num_ranks):
        assert schedule.stages_of(rank) == (rank, 2 * num_ranks - 1 - rank)
    expected = 2 * min(num_ranks, num_microbatches)  # each counts as half a stage of 1F1B
    assert simulate(schedule).peak_activations == (expected,) * num_ranks


def test_interleaved_needs_a_number_of_microbatches_that_divides_evenly():
    with pytest.raises(ValueError, match="microbatches a multiple of ranks"):
        interleaved(4, 6, stages_a_rank=2)


@given(**shapes)
def test_activations_stay_within_the_bound_of_each_schedule(num_stages, num_microbatches):
    assert simulate(gpipe(num_stages, num_microbatches)).peak_activations == (num_microbatches,) * num_stages
    ahead = simulate(one_f_one_b(num_stages, num_microbatches)).peak_activations
    assert ahead == tuple(min(num_stages - stage, num_microbatches) for stage in range(num_stages))
    assert max(simulate(zb1p(num_stages, num_microbatches)).peak_activations) <= num_stages


@given(**shapes, transfer_s=st.floats(0, 5))
def test_no_schedule_deadlocks_and_transfer_time_only_lengthens_it(num_stages, num_microbatches, transfer_s):
    for schedule in (gpipe, one_f_one_b, zb1p, zbv):
        one = schedule(num_stages, num_microbatches)
        assert simulate(one, seconds_of, transfer_s=transfer_s).length_s >= simulate(one, seconds_of).length_s


def test_actions_begin_after_their_inputs_and_one_at_a_time():
    schedule = one_f_one_b(3, 4)
    found = simulate(schedule, seconds_of, transfer_s=0.5)
    begins = {
        action: begin
        for actions, times in zip(schedule.ranks, found.begins, strict=True)
        for action, begin in zip(actions, times, strict=True)
    }
    for action, begin in begins.items():
        if action.kind is Kind.FORWARD and action.stage:
            assert begin >= begins[replace(action, stage=action.stage - 1)] + 1.5
        if action.kind is Kind.BACKWARD and action.stage < 2:
            assert begin >= begins[replace(action, stage=action.stage + 1)] + 2.5
    for actions, times in zip(schedule.ranks, found.begins, strict=True):
        for action, begin, following in zip(actions[:-1], times[:-1], times[1:], strict=True):
            assert following >= begin + seconds_of(action)


def test_ranks_in_a_deadlock_are_named_with_the_actions_that_they_wait_for():
    crossed = Schedule("crossed", 2, 1, lists("0F0 0B0", "1B0 1F0"))
    with pytest.raises(
        ScheduleError, match="crossed would never end: rank 0 at 0B0 waits for 1B0; rank 1 at 1B0 waits for 1F0"
    ):
        simulate(crossed)


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        (lists("0F0 0B0", "1F0"), "stage 1 does F for microbatch 0; expected F and B"),
        (lists("0F0 0B0", ""), "stage 1 does nothing for microbatch 0"),
        (lists("0F0 0F0 0B0", "1F0 1B0"), "stage 0 does BFF"),
        (lists("0F0 0I0", "1F0 1B0"), "stage 0 does FI for"),
        (lists("0F0 0B0 0F1 0B1", "1F0 1B0"), "stage 0 does BF for microbatch 1"),
        (lists("0F0 0B0 1F0", "1B0"), "ranks 0 and 1 both act for stage 1B0"),
    ],
)
def test_missing_and_repeated_actions_are_refused(ranks, words):
    with pytest.raises(ScheduleError, match=words):
        simulate(Schedule("odd", 2, 1, ranks))


@given(st.integers(0, 99), st.sampled_from(list(Kind)), st.integers(0, 99))
def test_a_formatted_action_is_parsed_back_unchanged(stage, kind, microbatch):
    action = Action(stage, kind, microbatch)
    assert parse_action(str(action)) == action


@pytest.mark.parametrize("text", ["", "F0", "0F", "0X0", "0f0", "-1F0", "0F0 "])
def test_an_invalid_action_is_refused(text):
    with pytest.raises(ValueError, match="is no action"):
        parse_action(text)


def test_the_description_of_an_action_explains_its_letters():
    assert parse_action("2F0").words == "2F0 (forward pass of stage 2, microbatch 0)"
    assert parse_action("1I7").words == "1I7 (gradient of the input of stage 1, microbatch 7)"


def test_a_schedule_is_printed_with_one_line_per_rank():
    assert str(gpipe(2, 1)) == "gpipe, 2 stages, 1 microbatches\nrank 0: 0F0 0B0\nrank 1: 1F0 1B0"


@pytest.mark.parametrize("schedule", [gpipe, one_f_one_b, zb1p, zbv])
def test_no_stages_or_no_microbatches_are_refused(schedule):
    with pytest.raises(ValueError, match="expected 1 or more of both"):
        schedule(0, 1)
    with pytest.raises(ValueError, match="expected 1 or more of both"):
        schedule(1, 0)
