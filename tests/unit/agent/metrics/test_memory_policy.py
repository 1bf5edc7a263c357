"""Pauses between polls of watched memory, and the message about exceeded limits."""

import pytest

from clary.agent.metrics.memory_policy import (
    GIB,
    LONGEST_PAUSE_S,
    SHORTEST_PAUSE_S,
    ProcessUse,
    excess_in_words,
    needs_exact,
    pause_s,
)
from clary.agent.metrics.memory_watch import parse_own_pages


@pytest.mark.parametrize(
    ("used_gib", "cost_s", "expected_s"),
    [
        (0, 0.001, LONGEST_PAUSE_S),
        (15, 0.001, 0.125),
        (15.99, 0.0001, SHORTEST_PAUSE_S),
        (15.99, 0.02, 0.08),
        (15.99, 1.0, 0.25),
        (20, 0.0001, SHORTEST_PAUSE_S),
    ],
)
def test_polls_are_more_frequent_near_the_limit_and_never_cost_much(used_gib, cost_s, expected_s):
    assert pause_s(int(used_gib * GIB), 16 * GIB, cost_s=cost_s) == pytest.approx(expected_s, rel=0.05)


def test_shared_pages_are_distinguished_only_near_the_limit():
    assert not needs_exact(7 * GIB, 10 * GIB)
    assert needs_exact(9 * GIB, 10 * GIB)


def test_excess_names_host_limit_the_largest_processes_and_what_to_do():
    uses = [ProcessUse(100 + number, "worker", None, GIB // 4) for number in range(5)]
    uses.append(ProcessUse(99, "python3", 0, 4 * GIB))
    words = excess_in_words("algo-1", int(5.25 * GIB), int(4.7 * GIB), uses, advice="raise it")
    assert words == (
        "algo-1 used 5.25 GiB, its memory limit is 4.70 GiB, and all its processes were ended: "
        "python3 (rank 0) 4.00 GiB, worker (process 100) 0.25 GiB, worker (process 101) 0.25 GiB, "
        "worker (process 102) 0.25 GiB, 2 more with 0.50 GiB; raise it"
    )


def test_own_pages_are_private_ones_swap_included_and_shared_ones():
    text = b"00400000-7fff rollup\nRss: 900 kB\nPss: 700 kB\nPss_Anon: 300 kB\nPss_File: 350 kB\nPss_Shmem: 50 kB\n"
    assert parse_own_pages(text) == (300 * 1024, 50 * 1024)
    assert parse_own_pages(text + b"Swap: 9 kB\nSwapPss: 7 kB\n") == (307 * 1024, 50 * 1024)
