"""Files of /proc in the form in which kernels write them, and this machine's own."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.agent.metrics.proc_texts import (
    CpuTimes,
    IoCounters,
    parse_available_memory,
    parse_cpu_times,
    parse_environment_rank,
    parse_io,
    parse_network,
    parse_stat,
)

# A trainer with 38 threads that has set an awkward process name.
STAT = (
    b"41877 (pt) data (3) R) S 41860 41860 41860 0 -1 4194304 1593841 8213 12 0 90521 4410 77 31 20 0 38 0 2864020 "
    b"31276199936 612345 18446744073709551615 1 1 0 0 0 0 0 16781312 134237186 0 0 0 17 3 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
)
ZOMBIE = b"77 (sh) Z 70 70 70 0 -1 4228108 0 0 0 0 5 2 0 0 20 0 1 0 99 0 0 18446744073709551615 0 0 0 0 0 0 0 0 0\n"
IO = (
    b"rchar: 323934931\nwchar: 323929600\nsyscr: 632687\nsyscw: 632675\nread_bytes: 4096\nwrite_bytes: 323932160\n"
    b"cancelled_write_bytes: 0\n"
)
NETWORK = (
    b"Inter-|   Receive                            |  Transmit\n"
    b" face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier\n"
    b"    lo: 9999999     100    0    0    0     0          0         0  9999999     100    0    0    0     0       0\n"
    b"  eth0:1215843281 1033    0    0    0     0          0         0  2342    1020    0    0    0     0       0\n"
    b" ib0: 10       1    0    0    0     0          0         0  20    2    0    0    0     0       0\n"
)
MACHINE = (
    b"cpu  10132153 290696 3084719 46828483 16683 0 25195 175 1000 0\n"
    b"cpu0 1393280 32966 572056 13343292 6130 0 0 0 0 0\n"
    b"intr 199292 0 0\nctxt 22848\nbtime 1690000000\n"
)
MEMORY = (
    b"MemTotal:       24684096 kB\nMemFree:        17788320 kB\nMemAvailable:   23277612 kB\nHugePages_Total:       0\n"
)


def test_a_command_with_brackets_and_spaces_does_not_shift_the_fields():
    stat = parse_stat(STAT)
    assert stat.parent == 41860
    assert stat.cpu_ticks == 90521 + 4410
    assert stat.reaped_cpu_ticks == 77 + 31
    assert (stat.num_threads, stat.started_at, stat.memory_pages) == (38, 2864020, 612345)
    assert not stat.has_ended


def test_a_process_that_waits_to_be_reaped_has_ended_and_keeps_its_counters():
    stat = parse_stat(ZOMBIE)
    assert stat.has_ended
    assert stat.cpu_ticks == 7


@given(st.binary(max_size=15).filter(lambda name: b"\0" not in name))
def test_no_command_confuses_the_parser(name):
    head, _, tail = STAT.partition(b"(pt) data (3) R)")
    assert parse_stat(head + b"(" + name + b")" + tail) == parse_stat(STAT)


def test_bytes_of_the_disk_are_read_and_not_those_of_the_page_cache():
    assert parse_io(IO) == IoCounters(read_bytes=4096, write_bytes=323932160)


def test_loopback_does_not_count_and_a_name_may_touch_its_numbers():
    assert parse_network(NETWORK) == (1215843281 + 10, 2342 + 20)


def test_guest_time_is_not_added_to_user_time_again():
    assert parse_cpu_times(MACHINE) == CpuTimes(busy=10132153 + 290696 + 3084719 + 25195, iowait=16683, steal=175)


def test_text_of_another_form_is_refused_with_a_message():
    with pytest.raises(ValueError, match="expected a line of processor times, got"):
        parse_cpu_times(b"intr 5\ncpu 1 2\n")


def test_available_memory_is_in_bytes():
    assert parse_available_memory(MEMORY) == (24684096 * 1024, 23277612 * 1024)


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        (b"PATH=/bin\0RANK=3\0WORLD_SIZE=8\0", 3),
        (b"OMPI_COMM_WORLD_RANK=12\0", 12),
        (b"MY_RANK=5\0RANKS=4\0", None),
        (b"RANK=\0", None),
        (b"RANK=-1\0", None),
        (b"RANK=99999999999999999999\0", None),
        (b"RANK\0", None),
        (b"", None),
    ],
)
def test_a_rank_is_known_by_its_environment(text, rank):
    assert parse_environment_rank(text) == rank


def test_this_machines_own_files_can_be_read():
    own = parse_stat(Path("/proc/self/stat").read_bytes())
    assert own.parent == os.getppid()
    assert own.num_threads >= threading.active_count()
    assert own.memory_pages > 100
    assert parse_io(Path("/proc/self/io").read_bytes()).read_bytes >= 0
    assert parse_network(Path("/proc/self/net/dev").read_bytes()) >= (0, 0)
    assert parse_cpu_times(Path("/proc/stat").read_bytes()).busy > 0
    total, available = parse_available_memory(Path("/proc/meminfo").read_bytes())
    assert 0 < available <= total
