"""FailureReason in a job's description: the host is named once, and is never confused with another host."""

import pytest

from clary.base.errors import Fault
from clary.contract.failure_reasons import MAX_FAILURE_REASON
from clary.control.jobs.training_job import JobFailure


def reason(message, *, host="algo-1", **members):
    return JobFailure(fault=Fault.ALGORITHM.value, message=message, host=host, **members).reason


@pytest.mark.parametrize(
    "message",
    [
        "rank 3: no route to algo-10",
        "algo-10 was lost",
        "rank 0: FileNotFoundError: '/data/algo-1/a.csv'",
        "rank 0: the peer algo-1 was expected",
        "algo-1.csv is empty",
    ],
)
def test_a_message_that_begins_with_another_host_or_a_path_still_gets_its_host(message):
    assert reason(message) == f"AlgorithmError: algo-1: {message}"


@pytest.mark.parametrize(
    "message",
    ["algo-1 was lost: its agent has been silent", "algo-1: rank 0: x", "the agent of algo-1 did not report"],
)
def test_a_message_that_begins_with_its_host_names_it_once(message):
    assert reason(message) == f"AlgorithmError: {message}"


def test_a_failure_file_and_a_failure_without_a_host_are_quoted_unchanged():
    assert reason("my words", is_own_words=True) == "AlgorithmError: my words"
    assert reason("no hosts", host=None) == "AlgorithmError: no hosts"


def test_a_long_message_leaves_room_for_host_and_exit_code():
    text = reason("x" * 5000, exit_code=137)
    assert len(text) == MAX_FAILURE_REASON
    assert text.startswith("AlgorithmError: algo-1: x")
    assert text.endswith(", exit code: 137")
