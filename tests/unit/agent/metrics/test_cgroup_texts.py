"""Files of cgroups of version 1 and 2 in the form in which kernels write them."""

from __future__ import annotations

import pytest

from clary.agent.metrics import cgroup_texts
from clary.agent.metrics.cgroup_texts import Throttling

# Version 2, with cpu.max and memory.max.
CPU_STAT_2 = b"""usage_usec 61200340
user_usec 55100200
system_usec 6100140
nr_periods 1200
nr_throttled 340
throttled_usec 22250000
nr_bursts 0
burst_usec 0
"""
CPU_STAT_2_WITHOUT_BOUND = b"usage_usec 61200340\nuser_usec 55100200\nsystem_usec 6100140\n"
MEMORY_STAT_2 = (
    b"anon 1073741824\nfile 524288000\nkernel 20971520\ninactive_anon 0\nactive_anon 1073700864\n"
    b"inactive_file 419430400\nactive_file 104857600\n"
)
EVENTS_2 = b"low 0\nhigh 0\nmax 4021\noom 3\noom_kill 2\noom_group_kill 0\n"
# Version 1.
CPU_STAT_1 = b"nr_periods 1200\nnr_throttled 340\nthrottled_time 22250000000\n"
MEMORY_STAT_1 = (
    b"cache 1000\nrss 2000\ninactive_file 5000\nactive_file 10\nhierarchical_memory_limit 2147483648\n"
    b"total_cache 1000\ntotal_inactive_file 700000\n"
)
EVENTS_1 = b"oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"


def test_processor_time_of_version_2_is_in_microseconds_and_of_version_1_in_nanoseconds():
    assert cgroup_texts.cpu_seconds(version=2, cpu_stat=CPU_STAT_2, cpuacct_usage=None) == 61.20034
    assert cgroup_texts.cpu_seconds(version=1, cpu_stat=CPU_STAT_1, cpuacct_usage=b"61200340123\n") == 61.200340123


def test_processor_time_is_unknown_where_no_file_says_it():
    assert cgroup_texts.cpu_seconds(version=1, cpu_stat=CPU_STAT_1, cpuacct_usage=None) is None
    assert cgroup_texts.cpu_seconds(version=2, cpu_stat=None, cpuacct_usage=None) is None


def test_throttling_is_the_same_in_both_versions():
    expected = Throttling(num_periods=1200, num_throttled=340, throttled_s=22.25)
    assert cgroup_texts.throttling(CPU_STAT_2) == cgroup_texts.throttling(CPU_STAT_1) == expected


def test_a_cgroup_whose_processor_time_is_not_bounded_is_not_throttled():
    assert cgroup_texts.throttling(CPU_STAT_2_WITHOUT_BOUND) is None
    assert cgroup_texts.throttling(None) is None


def test_file_pages_that_nobody_touches_are_not_memory_in_use():
    assert cgroup_texts.memory_in_use(b"1619001344\n", MEMORY_STAT_2) == 1619001344 - 419430400
    # Version 1 counts the whole tree with "total_".
    assert cgroup_texts.memory_in_use(b"1000000\n", MEMORY_STAT_1) == 300000


def test_memory_in_use_does_without_details_and_is_never_negative():
    assert cgroup_texts.memory_in_use(b"5\n", None) == 5
    assert cgroup_texts.memory_in_use(b"5\n", b"inactive_file 70\n") == 0
    assert cgroup_texts.memory_in_use(None, MEMORY_STAT_2) is None


@pytest.mark.parametrize(
    ("text", "limit"),
    [(b"2147483648\n", 2147483648), (b"max\n", None), (b"9223372036854771712\n", None), (b"", None), (None, None)],
)
def test_an_unlimited_cgroup_has_no_limit_in_both_versions(text, limit):
    assert cgroup_texts.memory_limit(text) == limit


def test_kills_at_the_memory_limit_are_counted_in_both_versions():
    assert cgroup_texts.oom_kills(EVENTS_2) == cgroup_texts.oom_kills(EVENTS_1) == 2
    assert cgroup_texts.oom_kills(b"low 0\n") is None


def test_lines_of_another_kind_are_left_out():
    assert cgroup_texts.parse_flat(b"a 1\nb\nc 2 3\nd x\ne -4\n\n") == {b"a": 1, b"e": -4}
