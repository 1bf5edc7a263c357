"""Start times of waiting jobs: estimated from past jobs similar to the jobs ahead, from limits, or unknown."""

import pytest

from clary.control.scheduling.placement import Capacity, Holding, Need
from clary.control.scheduling.queue_estimates import (
    MOST_ESTIMATED,
    Basis,
    Lasting,
    QueuedJob,
    RunningJob,
    estimate_starts,
    lasting,
)

CAPACITY = Capacity(max_hosts=4, num_gpus=2, memory_per_host_bytes=100, memory_bytes=400)
PAST, LIMIT = Basis.PAST_JOBS, Basis.MAX_RUNTIME


def runs(name, hosts, seconds, basis=PAST, gpus=()):
    holding = Holding(job_name=name, num_hosts=hosts, gpu_indices=gpus)
    return RunningJob(holding=holding, left=Lasting(seconds=seconds, basis=basis))


def waits(name, hosts, seconds, basis=PAST, gpus=0):
    need = Need(job_name=name, instance_type="t", gpus_per_host=(gpus,) * hosts, num_gpus=gpus * hosts)
    return QueuedJob(need=need, lasting=Lasting(seconds=seconds, basis=basis))


def starts(running, queue):
    found = estimate_starts(running, queue, capacity=CAPACITY)
    return {name: (one.start_in_s, one.basis) for name, one in found.items()}


@pytest.mark.parametrize(
    ("past", "elapsed", "expected"),
    [
        ((), 0, (100, LIMIT)),
        ((), 30, (70, LIMIT)),
        ((10, 50, 20), 0, (20, PAST)),
        ((10, 50, 20), 5, (15, PAST)),
        ((10, 50, 20), 25, (75, LIMIT)),  # longer than all similar past jobs: it may run to its limit
        ((900,), 0, (100, PAST)),  # no job outlasts its limit
        ((900,), 100, (0, PAST)),
        ((), 500, (0, LIMIT)),
    ],
)
def test_a_job_is_expected_to_last_as_long_as_similar_jobs_or_to_its_limit(past, elapsed, expected):
    found = lasting(past, max_runtime_s=100, elapsed_s=elapsed)
    assert (found.seconds, found.basis) == expected


def test_a_job_starts_when_enough_hosts_are_free_and_no_younger_job_overtakes():
    queue = [waits("large", 3, 50), waits("small", 1, 5), waits("last", 1, 5)]
    assert starts([runs("a", 2, 10), runs("b", 2, 40)], queue) == {
        "large": (40, PAST),
        "small": (40, PAST),
        "last": (45, PAST),  # small ends first, after large has started
    }


def test_estimates_that_follow_from_a_limit_are_marked_as_limits():
    queue = [waits("first", 4, 5), waits("second", 4, 5)]
    assert starts([runs("a", 4, 10)], queue) == {"first": (10, PAST), "second": (15, PAST)}
    assert starts([runs("a", 4, 3600, LIMIT)], queue) == {"first": (3600, LIMIT), "second": (3605, LIMIT)}


def test_gpus_are_waited_for_like_hosts():
    assert starts([runs("a", 1, 10, gpus=(0, 1))], [waits("b", 1, 5, gpus=1)]) == {"b": (10, PAST)}


def test_a_start_that_can_not_be_estimated_is_unknown():
    assert starts([], [waits("too-large", 9, 5), waits("behind", 1, 5)]) == {
        "too-large": (None, Basis.UNKNOWN),
        "behind": (None, Basis.UNKNOWN),
    }
    many = [waits(f"j{number}", 4, 1) for number in range(MOST_ESTIMATED + 1)]
    found = estimate_starts([], many, capacity=CAPACITY)
    assert found[f"j{MOST_ESTIMATED - 1}"].start_in_s == MOST_ESTIMATED - 1
    assert found[f"j{MOST_ESTIMATED}"].reason == f"more than {MOST_ESTIMATED} jobs are ahead"
