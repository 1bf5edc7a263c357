"""The lines of benchmark `deepspeed`: slowest ranks, ratios of alternating runs, losses that must agree."""

import pytest
from benchmarks.frameworks.bench_deepspeed import AS_DDP, CASES, OURS, PEER, SAME, Case, Taken, lines, paired_ratio

ABOUT = {"deepspeed": "0.19.8", "torch": "2.13.0"}


def taken(seconds, losses=(2.0, 1.0), peak_bytes=100):
    return Taken([list(seconds)], list(losses), peak_bytes, num_parameters=7)


def step_and_memory(ours, peer, plain, case=CASES[1]):
    return list(lines(case, {OURS: ours, PEER: peer}, plain, ABOUT))


def test_a_step_takes_as_long_as_its_slowest_rank_and_has_the_mean_loss():
    found = Taken()
    found.add([{"seconds": [9.0], "losses": [4.0]}, {"seconds": [9.0], "losses": [2.0]}], counts=False)
    found.add(
        [{"seconds": [1.0, 4.0], "losses": [2.0, 1.0]}, {"seconds": [3.0, 2.0], "losses": [1.0, 0.0]}], counts=True
    )
    assert (found.steps_s, found.losses) == ([3.0, 4.0], [3.0, 1.5, 0.5])


def test_a_faster_step_with_the_same_losses_is_verified_and_meets_the_goal():
    step, memory = step_and_memory(taken([0.1, 0.2, 0.3]), taken([0.4, 0.4, 0.4], peak_bytes=200), taken([0.3]))
    assert (step.ours, step.ratio, step.met, step.verified) == (0.2, 2.0, True, True)
    assert (memory.ours, memory.ratio, memory.met, memory.verified) == (100, 2.0, True, True)
    assert list(step.peers) == ["DeepSpeed 0.19.8 over gloo (torch 2.13.0)"]
    assert step.details["loss"] == {"smddp": 1.0, "gloo": 1.0, "ddp": 1.0}


def test_a_slower_step_and_more_memory_miss_their_goals():
    step, memory = step_and_memory(taken([0.3], peak_bytes=106), taken([0.2]), taken([0.3]))
    assert (step.met, memory.met, step.verified) == (False, False, True)


@pytest.mark.parametrize(
    ("peer_loss", "ddp_loss", "verified"),
    [(1 + SAME / 2, 1 + AS_DDP / 2, True), (1 + SAME * 2, 1.0, False), (1.0, 1 + AS_DDP * 2, False)],
)
def test_a_difference_in_the_losses_of_any_step_is_reported(peer_loss, ddp_loss, verified):
    found = step_and_memory(taken([1.0]), taken([1.0], [2.0 * peer_loss, 1.0]), taken([1.0], [2.0 * ddp_loss, 1.0]))
    assert [line.verified for line in found] == [verified, verified]


def test_losses_of_different_numbers_of_steps_are_an_error():
    with pytest.raises(ValueError, match="longer"):
        step_and_memory(taken([1.0]), taken([1.0], [2.0, 1.0, 0.5]), taken([1.0]))


def test_the_paired_ratio_compares_blocks_of_the_same_turn():
    ours, peer = Taken([[1.0], [10.0], [1.0]]), Taken([[2.0], [30.0], [2.0]])
    assert paired_ratio(ours, peer) == 2.0


def test_every_stage_is_measured_with_and_without_offload_after_ddp():
    assert [case.words for case in CASES[:3]] == [
        "ddp,ranks=2",
        "zero=1,offload=none,ranks=2",
        "zero=1,offload=cpu,ranks=2",
    ]
    assert set(CASES[1:]) == {Case(stage, is_offloaded) for stage in (1, 2, 3) for is_offloaded in (False, True)}
