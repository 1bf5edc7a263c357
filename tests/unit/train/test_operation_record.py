"""The record of a process: consistent at every moment, readable after a kill, and written by no other process."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from clary.agent.autopsy.call_records import read_records
from clary.contract import collective_records
from clary.contract.collective_records import (
    ENTERED,
    NUM_SLOTS,
    SWITCH_VARIABLE,
    CallRow,
    GroupFacts,
    is_memory_path,
    pack_row,
)
from clary.contract.step_records import FOLDER_VARIABLE
from clary.contract.step_records import SWITCH_VARIABLE as STEPS_SWITCH
from clary.train import operation_record
from clary.train.operation_record import OperationRecord, record_of_process

LIMIT_S = 60.0
# Writes rows whose every field depends on their number, five at once, then none for a moment.
WRITER = """
    import itertools, time
    from clary.contract.collective_records import NUM_ROWS, ROW, ROW_BYTES, GroupFacts
    from clary.train.operation_record import record_of_process
    record = record_of_process(5)
    rows = record.begin_group(GroupFacts("0", "gloo", 2, 0, (0, 1)))
    print("up", flush=True)
    for number in itertools.count(1):
        place = rows + number % NUM_ROWS * ROW_BYTES
        ROW.pack_into(record.memory, place, number, number * 3, number * 5, number * 7, -1, 1, 1, 0, number)
        if number % 5 == 0:
            time.sleep(0.0005)
"""


@pytest.fixture
def own(monkeypatch, tmp_path):
    """Use a new record for this process during the test; return the folder of records."""
    monkeypatch.setattr(operation_record, "_own", operation_record._OfProcess())
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    for name in (SWITCH_VARIABLE, STEPS_SWITCH, "RANK"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def started(folder, program, **variables):
    environment = {**os.environ, FOLDER_VARIABLE: str(folder), **variables}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], env=environment, stdout=subprocess.PIPE, text=True
    )


def test_a_row_is_never_read_half_written_and_a_kill_preserves_the_last_rows(tmp_path):
    writer = started(tmp_path, WRITER, RANK="2")
    try:
        assert writer.stdout.readline() == "up\n"
        seen, end_s = set(), time.monotonic() + LIMIT_S
        while len(seen) < 200:
            assert time.monotonic() < end_s, f"{len(seen)} rows were read"
            (record,) = read_records(tmp_path).records
            for row in record.groups[0].rows:
                facts = (row.started_ns, row.finished_ns, row.num_elements)
                assert facts == (row.number * 3, row.number * 5, row.number * 7)
                seen.add(row.number)
    finally:
        os.kill(writer.pid, signal.SIGKILL)
        writer.communicate()
    (record,) = read_records(tmp_path).records
    assert (record.rank, record.process) == (2, writer.pid)
    rows = record.groups[0].rows
    assert len(rows) >= 7, "one may have been under its pen"
    assert rows[0].number >= max(seen) - 1


def test_a_process_has_one_record_with_a_slot_for_each_group(own):
    record = record_of_process(4)
    assert record_of_process(9) is record
    first = record.begin_group(GroupFacts("0", "gloo", 2, 0, (0, 1)))
    second = record.begin_group(GroupFacts("1", "smddp", 2, 1))
    assert first != second
    row = CallRow(1, 10, 0, 4, -1, 1, 1, ENTERED)
    record.memory[second + 48 : second + 96] = pack_row(row)
    (found,) = read_records(own).records
    assert (found.rank, found.process) == (4, os.getpid())
    assert [(group.facts.name, len(group.rows)) for group in found.groups] == [("0", 0), ("1", 1)]
    assert [path.name for path in own.iterdir()] == [f"4-{os.getpid()}.calls"]


def test_groups_without_a_free_slot_are_counted(own):
    record = record_of_process(0)
    places = [record.begin_group(GroupFacts(str(index), "gloo", 1)) for index in range(NUM_SLOTS + 3)]
    assert places[NUM_SLOTS:] == [None] * 3
    (found,) = read_records(own).records
    assert (len(found.groups), found.num_left_out) == (NUM_SLOTS, 3)


def test_a_forked_child_has_its_own_record(own):
    record = record_of_process(0)
    record.begin_group(GroupFacts("0", "gloo", 1))
    child = os.fork()
    if child == 0:
        fresh = record_of_process(0)
        os._exit(0 if fresh is not None and fresh is not record and fresh.process == os.getpid() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sorted(found.process for found in read_records(own).records) == sorted([os.getpid(), child])
    assert record_of_process(0) is record


@pytest.mark.parametrize("switch", [SWITCH_VARIABLE, STEPS_SWITCH])
def test_nothing_is_recorded_if_it_is_switched_off_or_no_agent_wants_it(own, monkeypatch, switch):
    monkeypatch.setenv(switch, "0")
    assert record_of_process(0) is None
    monkeypatch.setenv(switch, "1")
    monkeypatch.delenv(FOLDER_VARIABLE)
    assert record_of_process(0) is None
    assert list(own.iterdir()) == []


def test_an_unwritable_folder_is_tried_once(own, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(own / "nowhere"))
    assert record_of_process(0) is None
    monkeypatch.setenv(FOLDER_VARIABLE, str(own))
    assert record_of_process(0) is None


def test_a_record_in_memory_is_linked_from_its_folder_and_outlives_its_process(tmp_path):
    writer = started(
        tmp_path,
        """
        import os, signal
        from clary.contract.collective_records import ENTERED, CallRow, GroupFacts, pack_row
        from clary.train.operation_record import OperationRecord
        record = OperationRecord(os.environ["CLARY_STEPS_FOLDER"], 3, is_in_memory=True)
        rows = record.begin_group(GroupFacts("0", "gloo", 1))
        record.memory[rows + 48 : rows + 96] = pack_row(CallRow(1, 10, 0, 4, -1, 1, 1, ENTERED))
        os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    writer.communicate(timeout=LIMIT_S)
    (link,) = tmp_path.iterdir()
    target = Path(os.readlink(link))
    try:
        assert is_memory_path(str(target))
        assert link.name == f"3-{writer.pid}.calls"
        for roots in ([""], ["/proc/0/root", f"/proc/{os.getpid()}/root"]):
            (record,) = read_records(tmp_path, roots).records
            assert (record.rank, record.process, record.groups[0].rows[0].number) == (3, writer.pid, 1)
        assert read_records(tmp_path, ["/proc/0/root"]).records == ()
    finally:
        target.unlink()
    assert read_records(tmp_path).records == ()


def test_without_space_in_memory_the_record_is_in_its_folder(own, monkeypatch):
    monkeypatch.setattr(collective_records, "MEMORY_FOLDER", str(own / "nowhere"))
    OperationRecord(str(own), 0, is_in_memory=True)
    (path,) = own.iterdir()
    assert path.is_file()
    assert not path.is_symlink()
    assert [found.rank for found in read_records(own).records] == [0]


def test_a_full_disk_is_an_error_before_the_file_is_mapped(own, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(OSError, match="No space"):
        OperationRecord(str(own), 0)
    assert record_of_process(0) is None


def test_the_file_is_named_by_the_launcher_s_rank(own, monkeypatch):
    monkeypatch.setenv("RANK", "11")
    assert record_of_process(0) is not None
    assert [found.rank for found in read_records(own).records] == [11]
