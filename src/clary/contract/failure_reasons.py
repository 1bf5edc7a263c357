"""The only table from fault to FailureReason, which clients show to users.

Where: `control.jobs.training_job` formats the reason of a failed job; no other module writes a training job's
FailureReason.
Source: FailureReason of DescribeTrainingJob; prefixes as the service prints them (`AlgorithmError`, `ClientError`,
`CapacityError`, `InternalServerError`).
"""

from __future__ import annotations

from clary.base.errors import Fault

# Beginnings of agents' messages about proven causes; such messages take precedence over the program's own.
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
        fault: cause of the failure; chooses the prefix.
        message: the cause in words; the end of a long message is cut off, the exit code stays.
        exit_code: exit code of the program, for algorithm errors.
    """
    prefix = f"{PREFIXES[fault]}: "
    suffix = f", exit code: {exit_code}" if exit_code is not None else ""
    room = MAX_FAILURE_REASON - len(prefix) - len(suffix)
    return f"{prefix}{message[:room]}{suffix}"
