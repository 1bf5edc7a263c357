"""Conversion of errors into failures for the report to the service."""

from __future__ import annotations

from datetime import datetime, timezone

from clary.base.errors import ClaryError, Fault
from clary.contract.agent_protocol import Failure

_FAILURE_CHARACTERS = 1024  # limit of FailureReason in DescribeTrainingJob


def is_expected(error: Exception) -> bool:
    """Whether an error is expected on hosts; any other error is a defect of the agent, logged with a traceback."""
    return isinstance(error, ClaryError | OSError)


def failure_of(error: Exception) -> Failure:
    """Convert an error into a failure; an unexpected error becomes a defect of the agent."""
    if isinstance(error, ClaryError):
        message, fault, retryable = error.message, error.fault, error.retryable
    elif isinstance(error, OSError):  # errors of the machine, for example a full disk
        message, fault, retryable = f"{error} on this host", Fault.INFRASTRUCTURE, True
    else:
        message = f"{type(error).__name__}: {error} (a defect of the agent; see agent.log of this host)"
        fault, retryable = Fault.INTERNAL, False
    return Failure(
        fault=fault.value, message=message[:_FAILURE_CHARACTERS], retryable=retryable, at=datetime.now(timezone.utc)
    )
