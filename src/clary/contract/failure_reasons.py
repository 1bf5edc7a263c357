"""The one table from fault to FailureReason, as clients and their users know it.

Where: `control.jobs.transitions` formats the reason of a failed job; nothing else writes one.
Source: FailureReason of DescribeTrainingJob; prefixes as the service prints them (`AlgorithmError`, `ClientError`,
`CapacityError`, `InternalServerError`).
"""

from __future__ import annotations

from clary.base.errors import Fault

# How messages of agents begin that tell what they know for certain, whatever the program has said.
OUT_OF_MEMORY = "OutOfMemory"
FULL_DISK = "No space left on device"

MAX_FAILURE_REASON = 1024  # characters, limit of the FailureReason shape

PREFIXES: dict[Fault, str] = {
    Fault.USER: "ClientError",
    Fault.ALGORITHM: "AlgorithmError",
    Fault.CAPACITY: "CapacityError",
    Fault.INFRASTRUCTURE: "InternalServerError",
    Fault.INTERNAL: "InternalServerError",
}


def failure_reason(fault: Fault, message: str, *, exit_code: int | None = None) -> str:
    """Format a FailureReason of at most 1024 characters.

    Args:
        fault: who is to blame; chooses the prefix.
        message: the cause in words; cut in the middle of nothing: its end gives way, the exit code stays.
        exit_code: of the program, for algorithm errors.
    """
    prefix = f"{PREFIXES[fault]}: "
    suffix = f", exit code: {exit_code}" if exit_code is not None else ""
    room = MAX_FAILURE_REASON - len(prefix) - len(suffix)
    return f"{prefix}{message[:room]}{suffix}"
