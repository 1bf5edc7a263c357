"""Errors of Clary, in one class hierarchy.

    ClaryError
    |-- ContractError      a document (plan, message, settings) that breaks the contract between Clary's parts
    |-- WireError          the answer to a client: an AWS error code with its message and HTTP status
    |-- EngineError        hosts that could not be granted, started or stopped
    |-- StoreError         records that could not be written or read
    |-- ObjectStoreError   the S3 side: a request that the object store refused or did not answer
    |-- AgentError         a step that failed on an agent's host
    `-- CollectiveError    a failed collective of ranks (`train._native.errors`)

Errors of queries over logs derive directly from ClaryError, too. The libraries of `train`, except collectives, have
errors of their own.

Every message names the object, the expected value, the actual value and what to do about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clary.base.string_enum import StrEnum

NOTHING_CHANGED = "nothing_changed"  # key in details: the failed operation had no effect and may be repeated


class Fault(StrEnum):
    """Cause of a failure; `failure_reasons` maps it to the prefix that clients see."""

    USER = "user"  # the request or its data: bad channel, missing object, unknown image
    ALGORITHM = "algorithm"  # the training program ended with an error
    CAPACITY = "capacity"  # hosts that could not be granted
    INFRASTRUCTURE = "infrastructure"  # a host, link, disk or store that failed
    INTERNAL = "internal"  # a defect of Clary


class ClaryError(Exception):
    """Root of the errors that service, agents, commands and collectives raise on purpose.

    Args:
        message: one or more plain sentences: object, expected and actual value, what to do.
        fault: cause of the failure.
        retryable: whether the same operation can succeed later without a change by the user.
        details: machine-readable coordinates (job, host, rank, path, bytes), JSON-serialisable.
    """

    default_fault = Fault.INTERNAL

    def __init__(
        self,
        message: str,
        *,
        fault: Fault | None = None,
        retryable: bool = False,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.fault = fault if fault is not None else self.default_fault
        self.retryable = retryable
        self.details = dict(details or {})


class ContractError(ClaryError):
    """A document that breaks the contract between service, agent and program."""


class WireError(ClaryError):
    """An answer of the API in AWS's error shape.

    Args:
        code: AWS error code, for example `ValidationException`.
        message: text of the error as the client prints it.
        http_status: 4xx for the caller's errors, among them 403 for refused signatures; 5xx for errors of Clary.
    """

    default_fault = Fault.USER

    def __init__(self, code: str, message: str, *, http_status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.http_status = http_status


class EngineError(ClaryError):
    """Hosts that could not be granted, started or stopped."""

    default_fault = Fault.INFRASTRUCTURE


class StoreError(ClaryError):
    """Records that could not be written or read."""


class ObjectStoreError(ClaryError):
    """An S3 request that was refused or not answered; `details` hold bucket, key and HTTP status."""

    default_fault = Fault.INFRASTRUCTURE


class AgentError(ClaryError):
    """A step that an agent could not carry out on its host."""

    default_fault = Fault.INFRASTRUCTURE
