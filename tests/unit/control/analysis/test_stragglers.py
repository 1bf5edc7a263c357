"""Slow ranks and the reasons, from times that ranks measure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.control.analysis.stragglers import (
    LEAST_MOMENTS,
    HostFacts,
    RankSteps,
    StepTimes,
    StragglerKind,
    judge,
    rows_of,
)

BUSY = {"data_wait_s": 0.05, "forward_s": 0.1, "backward_s": 0.2, "optimizer_s": 0.05}


def gang(num_ranks=4, *, step_s=0.5, ranks_per_host=1, moments=12, **changes):
    """Return ranks with equally long steps; `rank_N={part: seconds}` changes parts of rank N.

    Communication is the remaining time of a step.
    """
    ranks = []
    for rank in range(num_ranks):
        parts = {**BUSY, **changes.get(f"rank_{rank}", {})}
        other_s = parts.pop("other_s", 0.0)
        times = StepTimes(step_s=step_s, communication_s=step_s - sum(parts.values()) - other_s, **parts)
        host = f"algo-{1 + rank // ranks_per_host}"
        ranks.append(RankSteps(rank=rank, host=host, moments=dict.fromkeys(range(0, 5000 * moments, 5000), times)))
    return ranks


def facts(num_hosts=4, **changes):
    hosts = {f"algo-{number}": HostFacts(refused_percent=0.0, rtt_ms=0.2) for number in range(1, num_hosts + 1)}
    return hosts | {name.replace("_", "-"): change for name, change in changes.items()}


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"backward_s": 0.29}, StragglerKind.COMPUTE, "backward passes: 0.290 s against 0.200 s"),
        ({"forward_s": 0.19}, StragglerKind.COMPUTE, "forward passes"),
        ({"optimizer_s": 0.14}, StragglerKind.COMPUTE, "the optimizer"),
        ({"other_s": 0.09}, StragglerKind.COMPUTE, "outside of data, passes and optimizer"),
        ({"data_wait_s": 0.14}, StragglerKind.INPUT, "waiting for batches: 0.140 s against 0.050 s"),
    ],
)
def test_the_rank_that_works_longer_is_slow_and_its_longest_part_is_the_reason(change, kind, words):
    verdict = judge(gang(rank_2=change), facts())
    assert (verdict.kind, verdict.host, verdict.ranks) == (kind, "algo-3", (2,))
    assert any(words in line for line in verdict.evidence), verdict.evidence
    assert verdict.lost_s == pytest.approx(0.09)
    assert f"algo-3 (rank 2) is slow: {kind.value}" in verdict.text


def test_a_host_that_is_refused_its_processors_computes_slowly_even_if_its_data_comes_late():
    hosts = facts(algo_3=HostFacts(refused_percent=150.0))
    verdict = judge(gang(rank_2={"data_wait_s": 0.14}), hosts)
    assert verdict.kind is StragglerKind.COMPUTE
    assert "its limit refuses algo-3 150 % of a processor, the others 0 %" in verdict.evidence


def test_equal_throttling_of_all_hosts_does_not_excuse_slow_data():
    hosts = {f"algo-{number}": HostFacts(refused_percent=150.0) for number in range(1, 5)}
    assert judge(gang(rank_2={"data_wait_s": 0.14}), hosts).kind is StragglerKind.INPUT


def test_all_slow_ranks_of_a_host_are_named_and_no_others():
    ranks = gang(4, ranks_per_host=2, rank_2={"backward_s": 0.29}, rank_3={"backward_s": 0.28})
    assert judge(ranks, facts(2)).ranks == (2, 3)
    ranks = gang(4, ranks_per_host=2, rank_3={"backward_s": 0.28})
    assert judge(ranks, facts(2)).ranks == (3,)


def test_ranks_of_a_single_host_are_compared_with_each_other():
    ranks = gang(4, ranks_per_host=4, rank_1={"data_wait_s": 0.14})
    verdict = judge(ranks, facts(1))
    assert (verdict.kind, verdict.host, verdict.ranks) == (StragglerKind.INPUT, "algo-1", (1,))


def test_of_two_hosts_the_one_with_less_communication_is_slow():
    assert judge(gang(2, rank_0={"forward_s": 0.19}), facts(2)).host == "algo-1"


@pytest.mark.parametrize("change", [{}, {"backward_s": 0.24}])
def test_a_small_difference_blames_no_rank(change):
    verdict = judge(gang(rank_2=change), facts())
    assert verdict.kind is StragglerKind.NOBODY
    assert not verdict.is_found
    assert verdict.confidence == ""


def test_steps_that_are_slow_everywhere_blame_no_rank():
    slow = {f"rank_{rank}": {"backward_s": 5.0} for rank in range(4)}
    hosts = {f"algo-{number}": HostFacts(refused_percent=200.0, rtt_ms=0.2) for number in range(1, 5)}
    assert judge(gang(step_s=6.0, **slow), hosts).kind is StragglerKind.NOBODY


def test_equally_long_communication_blames_no_rank_on_an_even_network():
    assert judge(gang(step_s=5.0), facts()).kind is StragglerKind.NOBODY
    far = {f"algo-{number}": HostFacts(rtt_ms=50.0) for number in range(1, 5)}
    assert judge(gang(step_s=5.0), far).kind is StragglerKind.NOBODY


def test_a_host_far_from_all_others_is_the_networks_fault_if_steps_wait_for_it():
    hosts = facts(algo_4=HostFacts(rtt_ms=50.1))
    verdict = judge(gang(step_s=1.0), hosts)
    assert (verdict.kind, verdict.host, verdict.confidence) == (StragglerKind.NETWORK, "algo-4", "high")
    assert "50.1 ms at least, from the others 0.2 ms" in verdict.text
    assert judge(gang(step_s=0.41), hosts).kind is StragglerKind.NOBODY, "hardly any communication"


def test_of_two_hosts_that_are_far_apart_none_is_named():
    hosts = {"algo-1": HostFacts(rtt_ms=50.0), "algo-2": HostFacts(rtt_ms=50.2)}
    verdict = judge(gang(2, step_s=1.0), hosts)
    assert (verdict.kind, verdict.host) == (StragglerKind.NETWORK, "")
    assert "the way between the two hosts is slow" in verdict.text
    assert judge(gang(2, step_s=1.0), facts(2)).kind is StragglerKind.NOBODY


def test_many_retransmissions_of_a_host_are_the_networks_fault():
    hosts = facts(algo_2=HostFacts(rtt_ms=0.3, resent_percent=4.0), algo_3=HostFacts(rtt_ms=0.2, resent_percent=0.2))
    assert judge(gang(step_s=1.0), hosts).host == "algo-2"


def test_a_slow_rank_takes_precedence_over_a_slow_network():
    hosts = facts(algo_4=HostFacts(rtt_ms=50.0))
    assert judge(gang(step_s=1.0, rank_1={"backward_s": 0.6}), hosts).host == "algo-2"


def test_rare_long_steps_blame_no_rank():
    ranks = gang(moments=12)
    checkpoint = StepTimes(step_s=9.0, forward_s=0.1, backward_s=0.2)
    ranks[0] = RankSteps(rank=0, host="algo-1", moments={**ranks[0].moments, 5000: checkpoint, 30_000: checkpoint})
    assert judge(ranks, facts()).kind is StragglerKind.NOBODY


def test_a_rank_that_is_slow_half_of_the_time_is_not_blamed():
    ranks, slow = gang(moments=12), gang(moments=12, rank_2={"backward_s": 0.29})[2]
    mixed = {at: (slow if at < 35_000 else ranks[2]).moments[at] for at in ranks[2].moments}
    ranks[2] = RankSteps(rank=2, host="algo-3", moments=mixed)
    assert judge(ranks, facts()).kind is StragglerKind.NOBODY


@pytest.mark.parametrize("ranks", [[], gang(1), gang(4, moments=LEAST_MOMENTS - 1)])
def test_one_rank_or_few_measurements_give_no_verdict(ranks):
    verdict = judge(ranks, {})
    assert verdict.kind is StragglerKind.UNKNOWN
    assert not verdict.is_found


def test_hosts_that_train_independently_are_not_compared():
    ranks = gang(2, rank_1={"backward_s": 0.4})
    ranks = [RankSteps(rank=0, host=item.host, moments=item.moments) for item in ranks]
    assert judge(ranks, facts(2)).kind is StragglerKind.UNKNOWN


def test_ranks_whose_steps_differ_in_length_do_not_wait_for_each_other():
    moments = range(0, 60_000, 5000)
    ranks = [
        RankSteps(rank=rank, host=f"algo-{rank + 1}", moments=dict.fromkeys(moments, StepTimes(step_s=step_s)))
        for rank, step_s in enumerate((0.5, 0.1, 0.12))
    ]
    assert judge(ranks, facts(3)).kind is StragglerKind.NOBODY


def test_a_rank_that_is_waited_for_only_every_tenth_step_is_found():
    waits = StepTimes(step_s=1.1, communication_s=1.0)
    moments = {at_ms: waits if at_ms % 50_000 == 0 else StepTimes(step_s=0.1) for at_ms in range(0, 100_000, 5000)}
    ranks = [RankSteps(rank=rank, host=f"algo-{rank + 1}", moments=moments) for rank in range(2)]
    slow = RankSteps(rank=2, host="algo-3", moments=dict.fromkeys(moments, StepTimes(step_s=0.2)))
    assert judge([*ranks, slow], facts(3)).host == "algo-3"


def test_ranks_without_steps_are_left_out_of_the_table():
    ranks = [*gang(2), RankSteps(rank=9, host="algo-9", moments={})]
    assert [row.rank for row in rows_of(ranks)] == [0, 1]
    assert rows_of(ranks)[0].other_s == pytest.approx(0.0, abs=1e-6)


@given(st.lists(st.lists(st.floats(0, 1e6), min_size=6, max_size=6), min_size=0, max_size=6), st.floats(0, 1e4))
def test_there_is_a_verdict_whatever_was_measured(times, value):
    ranks = [
        RankSteps(rank=rank, host=f"algo-{1 + rank % 3}", moments=dict.fromkeys(range(5), made))
        for rank, made in enumerate(
            StepTimes(
                step_s=one[0],
                data_wait_s=one[1],
                forward_s=one[2],
                backward_s=one[3],
                communication_s=one[4],
                optimizer_s=one[5],
            )
            for one in times
        )
    ]
    hosts = {f"algo-{n}": HostFacts(refused_percent=value, rtt_ms=value, resent_percent=value) for n in (1, 2)}
    verdict = judge(ranks, hosts)
    assert verdict.text
    assert verdict.is_found == (verdict.confidence != "")
    assert all(rank in range(len(ranks)) for rank in verdict.ranks)


def test_on_gpus_an_unclear_verdict_recommends_clary_profile():
    hidden = gang(step_s=0.5, rank_0={"other_s": 0.1}, rank_1={"other_s": 0.1}, rank_2={"other_s": 0.1})
    assert "clary profile" in judge(hidden, facts(), has_gpus=True).text
    assert "clary profile" not in judge(hidden, facts()).text
    slow = judge(gang(rank_2={"data_wait_s": 0.14}), facts(), has_gpus=True)
    assert (slow.host, "clary profile" in slow.text) == ("algo-3", False)
