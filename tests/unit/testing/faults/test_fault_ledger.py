"""The ledger finds lost, doubled and hung jobs: for each kind of violation, a test shows that it is found."""

import dataclasses

import pytest
from botocore.exceptions import ClientError

from clary.testing.faults.fault_audit import is_set_aside
from clary.testing.faults.fault_counts import RunResult, count_by_kind
from clary.testing.faults.fault_fleet import Strike
from clary.testing.faults.fault_ledger import Ending, Evidence, Harm, Violation, compare_endings, compare_lists, judge
from clary.testing.faults.fault_plan import FaultKind, JobSpec
from clary.testing.faults.fault_program import DONE_LINE, STARTED_LINE, expected_lines

SPEC = JobSpec(name="fault-1-00001", num_hosts=1, num_lines=5, work_s=0.1, weights_bytes=10, exit_code=0)
LINES = [f"{STARTED_LINE} abc", *expected_lines(SPEC.name, 5), DONE_LINE]
COMPLETED = Ending(status="Completed", reason="", artifact="s3://clary/x", ended_at=None)
WHOLE = Evidence(
    ending=COMPLETED,
    lines={"algo-1": LINES},
    num_starts={"algo-1": 1},
    has_artifact=True,
    files={"algo-1.bin": True},
)


def failed(reason):
    ending = Ending(status="Failed", reason=reason, artifact="", ended_at=None)
    return dataclasses.replace(WHOLE, ending=ending, has_artifact=False, files={}, lines={"algo-1": LINES[:3]})


def harms(evidence, struck_by=(), spec=SPEC):
    return [violation.harm for violation in judge(spec, evidence, struck_by)]


def test_a_completed_job_with_every_line_and_its_weights_violates_no_promise():
    assert judge(SPEC, WHOLE, {FaultKind.KILL_SERVICE}) == []


@pytest.mark.parametrize(
    ("lines", "harm"),
    [
        (LINES[:-2] + LINES[-1:], Harm.LOST),
        (LINES[:3] + LINES[4:], Harm.LOST),
        (LINES[1:], Harm.LOST),
        ([*LINES[:3], LINES[2], *LINES[3:]], Harm.DOUBLED),
        ([LINES[0], *LINES], Harm.DOUBLED),
        ([], Harm.LOST),
    ],
)
def test_missing_and_repeated_lines_are_found(lines, harm):
    assert harms(dataclasses.replace(WHOLE, lines={"algo-1": lines})) == [harm]


def test_lines_of_a_failed_job_may_end_early_but_may_not_have_gaps():
    blamed = {FaultKind.KILL_AGENT}
    early = failed("InternalServerError: algo-1 was lost: its agent ended")
    assert harms(early, blamed) == []
    assert harms(dataclasses.replace(early, lines={"algo-1": [*LINES[:2], *LINES[4:]]}), blamed) == [Harm.LOST]


def test_a_full_disk_may_cost_lines_if_the_log_states_their_number():
    notice = "clary: 3 lines (90 bytes) were lost here: the disk of this host refused them (No space left on device)"
    told = dataclasses.replace(WHOLE, lines={"algo-1": [*LINES[:2], notice, *LINES[5:]]})
    assert harms(told, {FaultKind.FILL_HOSTS}) == []
    assert harms(told, {FaultKind.KILL_SERVICE}) == [Harm.LOST]
    wrong = dataclasses.replace(WHOLE, lines={"algo-1": [*LINES[:2], notice, *LINES[4:]]})
    assert harms(wrong, {FaultKind.FILL_HOSTS}) == [Harm.LOST]


def test_a_failure_must_name_the_injected_fault():
    reason = "InternalServerError: algo-1 was lost: its agent ended"
    assert harms(failed(reason), {FaultKind.KILL_AGENT, FaultKind.PAUSE_STORE}) == []
    assert harms(failed(reason), {FaultKind.KILL_SERVICE}) == [Harm.LOST]
    assert harms(failed(reason), {FaultKind.KILL_PROGRAM}) == [Harm.LOST]
    assert harms(failed(""), {FaultKind.KILL_AGENT}) == [Harm.LOST]


def test_a_job_whose_record_was_damaged_may_lose_its_hosts_but_no_lines():
    lost = failed("InternalServerError: algo-1 was lost: its agent ended")
    assert harms(lost, {FaultKind.SPOIL_ROW}) == []
    assert harms(lost, {FaultKind.DAMAGE_ENGINE_RECORD, FaultKind.DAMAGE_KEYS, FaultKind.LOSE_DATABASE}) == [Harm.LOST]
    assert harms(dataclasses.replace(WHOLE, lines={"algo-1": LINES[:-2]}), {FaultKind.SPOIL_ROW}) == [Harm.LOST]


def refused(words, code="ValidationException"):
    return ClientError({"Error": {"Code": code, "Message": words}}, "DescribeTrainingJob")


def test_only_a_refusal_that_names_job_and_remedy_proves_a_quarantine():
    words = "The record of training job 'a' cannot be read; take it back with: clary quarantine release 3"
    assert is_set_aside(refused(words), "a")
    assert not is_set_aside(refused(words), "another")
    assert not is_set_aside(refused(words, code="InternalFailure"), "a")
    assert not is_set_aside(refused("The record of training job 'a' cannot be read"), "a")


def test_a_program_that_fails_on_its_own_may_fail_and_may_not_complete():
    spec = dataclasses.replace(SPEC, exit_code=3)
    reason = failed("AlgorithmError: , exit code: 3")
    assert harms(dataclasses.replace(reason, lines={"algo-1": LINES}), spec=spec) == []
    assert harms(WHOLE, spec=spec) == [Harm.LOST]


def test_a_second_start_is_found_by_its_marker():
    assert harms(dataclasses.replace(WHOLE, num_starts={"algo-1": 2})) == [Harm.DOUBLED]


@pytest.mark.parametrize(
    "changes",
    [
        {"files": {}},
        {"files": {"algo-1.bin": False}},
        {"files": {}, "artifact_trouble": "ReadError: unexpected end of data"},
    ],
)
def test_an_incomplete_artifact_is_lost(changes):
    assert harms(dataclasses.replace(WHOLE, **changes)) == [Harm.LOST]


def test_a_stop_without_a_request_is_a_loss():
    stopped = dataclasses.replace(COMPLETED, status="Stopped")
    assert harms(dataclasses.replace(WHOLE, ending=stopped)) == [Harm.LOST]


def test_terminal_states_never_change():
    assert compare_endings("x", COMPLETED, COMPLETED) == []
    later = dataclasses.replace(COMPLETED, reason="other words")
    assert [item.harm for item in compare_endings("x", COMPLETED, later)] == [Harm.DOUBLED]


def test_lists_are_compared_with_the_accepted_jobs():
    accepted = {"a": COMPLETED, "b": None}
    assert compare_lists(accepted, [("a", "Completed"), ("b", "InProgress"), ("c", "InProgress")], {"c"}) == []
    assert [item.harm for item in compare_lists(accepted, [("a", "Completed")])] == [Harm.LOST]
    assert [item.harm for item in compare_lists(accepted, [("a", "Failed"), ("b", "InProgress")])] == [Harm.DOUBLED]
    twice = [("a", "Completed"), ("a", "Completed"), ("b", "InProgress"), ("z", "InProgress")]
    assert [item.harm for item in compare_lists(accepted, twice)] == [Harm.DOUBLED, Harm.DOUBLED]


def test_counts_name_the_harmful_fault_and_a_harmless_fault_is_survived():
    strikes = [Strike(number, FaultKind.KILL_STORE, (), float(number)) for number in (1, 2)]
    violations = [(Violation(harm=Harm.LOST, job="a", what="x"), strikes[1])] * 2
    (count,) = count_by_kind(strikes, violations)
    assert (count.injected, count.survived, count.lost, count.doubled, count.hung) == (2, 1, 2, 0, 0)
    result = RunResult(seed=1, counts=(count,), statuses={"Failed": 1}, violations=("x",), wall_s=1.0)
    assert not result.is_clean
    assert result.total.lost == 2
