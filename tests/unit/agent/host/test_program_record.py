"""A program's record, built from its reports, and completed when the reports end."""

import threading
from datetime import UTC, datetime

from clary.agent.host.program_record import ProgramRecord
from clary.agent.host.sandbox import ProcessSpec

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class FakeClock:
    def now(self):
        return NOON

    def monotonic(self):
        return 0.0


def record_of(num_processes):
    processes = [
        ProcessSpec(argv=("a",), environment={}, working_folder="/", rank=rank, local_rank=rank)
        for rank in range(num_processes)
    ]
    record = ProgramRecord(processes, hostname="algo-1", clock=FakeClock())
    for index in range(num_processes):
        record.apply({"kind": "forked", "index": index}, sender=100 + index)
    return record


def exited(index, *, code=None, signal=None, at=0.0, doomed=False):
    return {"kind": "exited", "index": index, "code": code, "signal": signal, "at": at, "doomed": doomed}


def test_exits_hold_the_processes_and_their_reports():
    record = record_of(2)
    record.apply(exited(1, code=3, at=5.0), sender=99)
    (end,) = record.exits_in_order()
    assert (end.rank, end.pid, end.exit_code, end.ended_at) == (1, 101, 3, datetime.fromtimestamp(5, UTC))
    assert (record.num_running(), record.running_pids()) == (1, [100])


def test_remaining_processes_of_a_dead_host_count_as_killed():
    record = record_of(2)
    record.apply({"kind": "ready", "not_isolated": []}, sender=99)
    record.apply(exited(0, code=0), sender=99)
    record.lose_the_rest()
    assert [(end.exit_code, end.signal, end.is_consequence) for end in record.exits_in_order()] == [
        (0, None, False),
        (None, 9, True),
    ]
    assert record.exits_in_order()[1].ended_at == NOON
    assert "killed 1 of 2 processes" in record.lost_why


def test_processes_that_vanish_after_the_agents_kill_are_no_failure():
    record = record_of(1)
    record.apply({"kind": "ready", "not_isolated": []}, sender=99)
    record.expect_end()
    record.lose_the_rest()
    assert record.exits_in_order()[0].is_consequence
    assert record.lost_why == ""


def test_a_host_that_failed_to_start_leaves_no_note_about_its_end():
    record = record_of(1)
    record.apply({"kind": "failed", "message": "mount refused"}, sender=99)
    record.lose_the_rest()
    assert (record.failure, record.notes(), record.is_ready) == ("mount refused", (), False)


def test_waiting_ends_with_the_last_exit_and_not_before():
    record = record_of(2)
    record.apply(exited(0, code=0), sender=99)
    assert record.wait_until_ended(0.01) is False
    late = threading.Timer(0.02, record.apply, args=[exited(1, code=0)], kwargs={"sender": 99})
    late.start()
    assert record.wait_until_ended(10) is True
    late.join()


def test_a_missing_answer_counts_as_zero_once_the_host_is_gone():
    record = record_of(1)
    record.apply({"kind": "signalled", "id": 4, "count": 7}, sender=99)
    assert record.wait_for_answer(4, 10) == 7
    record.lose_the_rest()
    assert record.wait_for_answer(5, 10) == 0
