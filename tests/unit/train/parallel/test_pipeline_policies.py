"""The next action of a rank in a pipeline."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.train.parallel.pipeline.policies import Phase, Ready, choose

READY = st.builds(
    Ready,
    st.sampled_from(Phase),
    st.integers(0, 5),
    st.integers(-1, 3),
    st.integers(0, 3),
    st.booleans(),
)


def chosen(policy: str, *ready: Ready, num_active: int = 0, max_active: int = 4) -> Ready | None:
    return choose(policy, ready, num_active=num_active, max_active=max_active).chosen


START, FORWARD, BACKWARD = (Ready(phase, 1) for phase in (Phase.START, Phase.FORWARD, Phase.BACKWARD))


def test_interleaved_prefers_backward_passes_and_starts_new_microbatches_last() -> None:
    assert chosen("interleaved", START, FORWARD, BACKWARD) == BACKWARD
    assert chosen("interleaved", START, FORWARD) == FORWARD
    assert chosen("interleaved", START) == START


def test_simple_runs_backward_passes_when_no_forward_pass_is_left() -> None:
    assert chosen("simple", START, FORWARD, BACKWARD) == FORWARD
    assert chosen("simple", START, BACKWARD) == START
    assert chosen("simple", BACKWARD) == BACKWARD


def test_no_more_microbatches_start_than_may_be_active() -> None:
    found = choose("interleaved", [START], num_active=4, max_active=4)
    assert found.chosen is None
    assert "4 microbatches are active" in found.reason
    assert chosen("simple", START, BACKWARD, num_active=4) == BACKWARD


def test_the_lowest_microbatch_is_first_and_started_work_precedes_new_work() -> None:
    low, high = Ready(Phase.FORWARD, 0), Ready(Phase.FORWARD, 3)
    assert chosen("interleaved", high, low) == low
    begun, new = Ready(Phase.FORWARD, 1, 0, 2, is_resumed=True), Ready(Phase.FORWARD, 1, 0, 0)
    assert chosen("interleaved", new, begun) == begun


@given(
    st.sampled_from(["interleaved", "simple", "_only_forward"]),
    st.lists(READY, unique=True, max_size=8),
    st.integers(0, 4),
    st.randoms(use_true_random=False),
)
def test_the_choice_does_not_depend_on_the_order_in_which_actions_became_ready(
    policy, ready, num_active, random
) -> None:
    first = choose(policy, ready, num_active=num_active, max_active=2).chosen
    shuffled = list(ready)
    random.shuffle(shuffled)
    assert choose(policy, shuffled, num_active=num_active, max_active=2).chosen == first
    if any(one.phase is not Phase.START for one in ready):
        assert first is not None, "a rank that could go on must go on"


@pytest.mark.parametrize("policy", ["interleaved", "simple"])
def test_without_ready_actions_none_is_chosen(policy: str) -> None:
    assert choose(policy, [], num_active=0, max_active=1).chosen is None
