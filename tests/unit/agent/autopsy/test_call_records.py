"""Records of collectives are matched to processes; records of ended ranks are kept; invalid records are left out."""

import os
import subprocess
import sys
import time
import tracemalloc
from datetime import UTC, datetime

import pytest

from clary.agent.autopsy import call_records
from clary.agent.autopsy.call_records import groups_of, left_calls, match, own_number, read_records
from clary.agent.autopsy.host_dump import dump_host
from clary.base.plain import from_plain, to_plain
from clary.contract.collective_records import (
    FILE_BYTES,
    FINISHED,
    GROUP_BYTES,
    NUM_ROWS,
    NUM_SLOTS,
    ROW_BYTES,
    WAITED_FOR,
    CallRecord,
    CallRow,
    GroupFacts,
    RecordedGroup,
    pack_group,
    pack_header,
    pack_row,
    slot_offset,
)
from clary.contract.stack_dumps import HostDump
from clary.contract.step_records import FOLDER as STEPS_FOLDER

WORLD = GroupFacts("0", "gloo", 4, 1, range(4))
SECOND_NS = 1_000_000_000


def record(rank, process, *numbers, at_s=10.0, facts=WORLD):
    rows = [
        CallRow(number, int((at_s + number) * SECOND_NS), 0, 4, -1, 1, 1, WAITED_FOR)
        for number in sorted(numbers, reverse=True)
    ]
    return CallRecord(rank, process, 0, (RecordedGroup(facts, tuple(rows)),))


def write(folder, rank, process, *rows, name=None):
    data = bytearray(pack_header(rank, process).ljust(FILE_BYTES, b"\0"))
    begin = slot_offset(0)
    data[begin : begin + GROUP_BYTES] = pack_group(WORLD, 1)
    for row in rows:
        place = begin + GROUP_BYTES + row.number % NUM_ROWS * ROW_BYTES
        data[place : place + ROW_BYTES] = pack_row(row)
    path = folder / (name or f"{rank}-{process}.calls")
    path.write_bytes(data)
    return path


def test_a_link_to_anywhere_else_is_not_followed(tmp_path):
    elsewhere = write(tmp_path, 0, 7, name="record")
    for target in (elsewhere, "/dev/shm/../shm/clary-0-7-0123456789abcdef.calls", "/dev/shm/x.calls", "0-8.calls"):
        link = tmp_path / "0-7.calls"
        link.symlink_to(target)
        assert read_records(tmp_path).records == ()
        link.unlink()


def test_a_record_belongs_to_the_process_with_its_pid_in_the_host():
    one, two = record(0, 7, 1), record(1, 8, 1)
    found, left = match([one, two], {1007: 7, 1008: 8, 1009: 9}, {1007: 0, 1008: 1})
    assert (found, left) == ({1007: one, 1008: two}, [])


def test_of_records_with_one_pid_the_record_of_the_processs_rank_is_used():
    old, new = record(3, 7, 1, 2, 3), record(0, 7, 1)
    assert match([old, new], {1007: 7}, {1007: 0})[0] == {1007: new}
    assert match([old, new], {1007: 7}, {})[0] == {1007: old}, "the one that was used last"


def test_of_ranks_without_a_process_the_newest_record_is_kept():
    older, newer, living = record(2, 5, 1), record(2, 6, 1, 2), record(0, 7, 1)
    found, left = match([older, newer, living, record(0, 4, 1)], {1007: 7}, {1007: 0})
    assert found == {1007: living}
    assert left == [newer], "rank 0 has a process: what it left before is of no interest"


def test_calls_are_described_with_ages_and_names_of_operations():
    facts = GroupFacts("1", "nccl", 2, 0, (1, 3), is_point_to_point=True)
    rows = (CallRow(2, 3 * SECOND_NS, 5 * SECOND_NS, 6, 1, 10, 2, FINISHED), CallRow(1, SECOND_NS, 0, 6, 1, 200, 99, 0))
    (group,) = groups_of(CallRecord(0, 1, 0, (RecordedGroup(facts, rows),)), 13 * SECOND_NS)
    assert (group.name, group.kind, group.size, group.ranks, group.is_point_to_point) == ("1", "nccl", 2, "1,3", True)
    newest, unknown = group.calls
    assert (newest.operation, newest.dtype, newest.count, newest.peer) == ("send", "float64", 6, 1)
    assert (newest.state, newest.age_s, newest.took_s, newest.is_held) == ("finished", 10.0, 2.0, False)
    assert (unknown.operation, unknown.dtype, unknown.took_s, unknown.is_held) == ("an operation", "", None, True)


def test_groups_are_ordered_by_their_last_use():
    old, new = record(0, 1, 1, at_s=1.0), record(0, 1, 1, at_s=9.0, facts=WORLD._replace(name="1"))
    both = CallRecord(0, 1, 0, (*old.groups, RecordedGroup(WORLD._replace(name="2"), ()), *new.groups))
    assert [group.name for group in groups_of(both, 20 * SECOND_NS)] == ["1", "0", "2"]


def test_files_that_are_no_records_are_left_out(tmp_path):
    assert read_records(tmp_path / "nowhere").records == ()
    write(tmp_path, 0, 7, CallRow(1, 1, 0, 4, -1, 1, 1, 0))
    (tmp_path / "1-8.calls").write_bytes(b"short")
    (tmp_path / "2-9.calls").mkdir()
    os.mkfifo(tmp_path / "3-9.calls")
    (tmp_path / "4-9.calls").symlink_to(tmp_path / "0-7.calls")
    write(tmp_path, 5, 9, name="5-9.other")
    assert [found.rank for found in read_records(tmp_path).records] == [0]


def fill(folder, *, num_files):
    """Write files in which every slot has a group that claims many ranks, and a row."""
    data = bytearray(pack_header(0, 0).ljust(FILE_BYTES, b"\0"))
    for index in range(NUM_SLOTS):
        begin = slot_offset(index)
        data[begin : begin + GROUP_BYTES] = pack_group(
            WORLD._replace(name=f"{index}", size=(1 << 16) - 3, ranks=range(3, 1 << 16)), 1
        )
        place = begin + GROUP_BYTES + ROW_BYTES
        data[place : place + ROW_BYTES] = pack_row(CallRow(1, 5, 0, 4, -1, 1, 1, WAITED_FOR))
    for rank in range(num_files):
        header = pack_header(rank, rank)
        (folder / f"{rank}-{rank}.calls").write_bytes(header + data[len(header) :])


def test_groups_that_claim_many_ranks_take_no_memory_and_no_time(tmp_path):
    fill(tmp_path, num_files=20)
    began_s = time.process_time()
    tracemalloc.start()
    try:
        left = left_calls(read_records(tmp_path).records, 100)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [len(one.groups) for one in left] == [NUM_SLOTS] * 20
    assert {group.ranks for one in left for group in one.groups} == {"3-65535"}
    assert most < 16 * 1024 * 1024
    assert time.process_time() - began_s < 5


def age(folder):
    """Give the files of a folder times, so that the one of the highest rank is the oldest."""
    for path in folder.iterdir():
        at_s = 1_000_000 - int(path.name.partition("-")[0])
        os.utime(path, (at_s, at_s), follow_symlinks=False)


def test_the_rows_of_all_files_are_bounded_and_what_is_left_out_is_counted(tmp_path, monkeypatch):
    fill(tmp_path, num_files=5)
    age(tmp_path)
    monkeypatch.setattr(call_records, "MAX_ROWS", 3 * NUM_SLOTS)
    found = read_records(tmp_path)
    assert ([one.rank for one in found.records], found.num_left_out) == ([0, 1, 2], 2)


def test_records_of_living_processes_are_read_before_those_of_ended_ones_and_newer_ones_first(tmp_path, monkeypatch):
    fill(tmp_path, num_files=6)
    age(tmp_path)
    monkeypatch.setattr(call_records, "MAX_ROWS", 3 * NUM_SLOTS)
    found = read_records(tmp_path, living={4, 5})
    assert ([one.rank for one in found.records], found.num_left_out) == ([4, 5, 0], 3)
    monkeypatch.setattr(call_records, "MAX_FILES", 2)
    found = read_records(tmp_path, living={3, 5})
    assert ([one.rank for one in found.records], found.num_left_out) == ([3, 5], 4)


def test_a_record_that_does_not_fit_hides_no_smaller_one(tmp_path, monkeypatch):
    fill(tmp_path, num_files=1)
    write(tmp_path, 1, 7, CallRow(1, 1, 0, 4, -1, 1, 1, 0))
    age(tmp_path)
    monkeypatch.setattr(call_records, "MAX_ROWS", NUM_SLOTS - 1)
    found = read_records(tmp_path)
    assert ([one.rank for one in found.records], found.num_left_out) == ([1], 1)


def test_a_dump_counts_the_records_that_it_leaves_out(tmp_path, monkeypatch):
    folder = tmp_path.joinpath(*STEPS_FOLDER)
    folder.mkdir(parents=True)
    monkeypatch.setattr(call_records, "MAX_ROWS", 1)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        write(folder, 0, 99_999_999, CallRow(40, 1, 0, 4, -1, 1, 1, WAITED_FOR))
        write(folder, 3, process.pid, CallRow(41, 1, 0, 4, -1, 1, 1, WAITED_FOR))
        dump = dump_host(
            os.getpid(),
            number=1,
            reason="",
            host="algo-1",
            addresses=(),
            ranks={process.pid: 3},
            now=datetime.now(UTC),
            ml_folder=tmp_path,
            is_ending=lambda: True,
        )
        process.stdin.close()
    assert [one.rank for one in dump.processes if one.collectives] == [3]
    assert (dump.left, dump.num_records_left_out) == ((), 1)


def test_a_dump_holds_the_calls_of_processes_and_of_ended_ranks(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        now_ns = time.monotonic_ns()
        folder = tmp_path.joinpath(*STEPS_FOLDER)
        folder.mkdir(parents=True)
        write(folder, 3, process.pid, CallRow(41, now_ns, 0, 4, -1, 1, 1, WAITED_FOR))
        write(folder, 2, 99_999_999, CallRow(40, now_ns, now_ns + 5, 4, -1, 1, 1, FINISHED))
        dump = dump_host(
            os.getpid(),
            number=1,
            reason="",
            host="algo-1",
            addresses=(),
            ranks={process.pid: 3},
            now=datetime.now(UTC),
            ml_folder=tmp_path,
            is_ending=lambda: True,
        )
    finally:
        process.kill()
        process.communicate()
    assert own_number(os.getpid()) == os.getpid()
    assert from_plain(HostDump, to_plain(dump)) == dump
    (found,) = (item for item in dump.processes if item.pid == process.pid)
    ((call,),) = (group.calls for group in found.collectives)
    assert (call.number, call.operation, call.state) == (41, "all_reduce", "waited for")
    assert 0 <= call.age_s < 60
    (left,) = dump.left
    assert (left.rank, left.groups[0].calls[0].number) == (2, 40)


def test_calls_of_ended_ranks_have_ages_relative_to_the_dump():
    (left,) = left_calls([record(2, 6, 40)], 100 * SECOND_NS)
    assert (left.rank, left.groups[0].calls[0].age_s) == (2, 50.0)


@pytest.mark.parametrize(("value", "rank"), [("3", 3), ("9" * 5000, None), ("three", None)])
def test_a_rank_that_the_program_invents_is_no_number_of_thousands_of_digits(value, rank):
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env={"RANK": value}) as process:
        dump = dump_host(
            os.getpid(),
            number=1,
            reason="",
            host="algo-1",
            addresses=(),
            ranks={},
            now=datetime.now(UTC),
            is_ending=lambda: True,
        )
        process.stdin.close()
    assert {one.pid: one.rank for one in dump.processes}[process.pid] == rank
