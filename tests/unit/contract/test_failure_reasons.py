"""FailureReason: a prefix for every fault, at most as long as the API allows, with the whole exit code."""

import pytest

from clary.base.errors import Fault
from clary.contract.failure_reasons import MAX_FAILURE_REASON, PREFIXES, failure_reason


def test_every_fault_has_a_prefix_that_clients_know():
    assert set(PREFIXES) == set(Fault)
    assert set(PREFIXES.values()) == {"ClientError", "AlgorithmError", "CapacityError", "InternalServerError"}


@pytest.mark.parametrize(
    ("fault", "message", "exit_code", "reason"),
    [
        (Fault.ALGORITHM, "my words", 1, "AlgorithmError: my words, exit code: 1"),
        (Fault.ALGORITHM, "", 137, "AlgorithmError: , exit code: 137"),
        (Fault.ALGORITHM, "done badly", 0, "AlgorithmError: done badly, exit code: 0"),
        (Fault.USER, "Data download failed:no such key", None, "ClientError: Data download failed:no such key"),
    ],
)
def test_reasons_read_as_those_of_the_real_service(fault, message, exit_code, reason):
    assert failure_reason(fault, message, exit_code=exit_code) == reason


@pytest.mark.parametrize("length", [0, 990, 1024, 5000])
def test_a_long_message_is_cut_and_the_exit_code_is_kept(length):
    reason = failure_reason(Fault.ALGORITHM, "x" * length, exit_code=255)
    assert len(reason) <= MAX_FAILURE_REASON
    assert reason.endswith(", exit code: 255")
