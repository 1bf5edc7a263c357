"""Errors of the store that callers distinguish; all are `StoreError`.

StoreError
|-- JobExists         a job of that name exists already
|-- JobNotFound       no job of that name
|-- MetricsFull       a job whose program adds too many metrics or values
|-- BadToken          a page token that belongs to another query, or is forged
|-- StaleLease        a write of a service whose lease another owner has taken
|-- StreamNotFound    no log stream of that name
|-- StreamDamaged     a log file that cannot be read completely
|-- SequenceGap       log lines after a gap
|-- BadLogQuery       a log query that the service refuses (InvalidParameterException)
`-- SeriesMoved       blocks of series that were joined or removed during a read
"""

from __future__ import annotations

from clary.base.errors import NOTHING_CHANGED, Fault, StoreError


class JobExists(StoreError):
    """A job of that name exists already; `existing_arn` is its ARN."""

    default_fault = Fault.USER

    def __init__(self, name: str, *, existing_arn: str) -> None:
        super().__init__(
            f"job {name!r} exists already as {existing_arn}: choose another name, or delete that job first"
        )
        self.existing_arn = existing_arn


class JobNotFound(StoreError):
    """No job of that name is stored."""

    default_fault = Fault.USER

    def __init__(self, name: str) -> None:
        super().__init__(f"no job is called {name!r}: it was never created, or it was deleted")
        self.job_name = name


class MetricsFull(StoreError):
    """A job whose program adds too many metrics, or values too fast."""

    default_fault = Fault.USER

    def __init__(self, message: str, *, is_too_fast: bool = False) -> None:
        super().__init__(message)
        self.is_too_fast = is_too_fast


class BadToken(StoreError):
    """A page token that is forged, damaged, or belongs to another query."""

    default_fault = Fault.USER


class StaleLease(StoreError):
    """Another owner has taken the lease; no change was written, and the caller must drop its work.

    Clients see a temporary failure: the service that holds the lease can carry out the same request.
    """

    default_fault = Fault.INFRASTRUCTURE

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=True, details={NOTHING_CHANGED: True})


class StreamNotFound(StoreError):
    """No log stream of that name is stored."""

    default_fault = Fault.USER

    def __init__(self, stream: str) -> None:
        super().__init__(f"no log stream is called {stream!r}: it was never created, or it was deleted")
        self.stream = stream


class StreamDamaged(StoreError):
    """A log file that cannot be read completely; other streams are not affected."""

    default_fault = Fault.INFRASTRUCTURE


class SequenceGap(StoreError):
    """Log lines before the batch are missing; no line was stored, resend from `next_sequence`."""

    def __init__(self, stream: str, *, next_sequence: int, first_sequence: int) -> None:
        super().__init__(
            f"log stream {stream!r}: expected line {next_sequence} next, got a batch that begins at {first_sequence}; "
            f"resend from {next_sequence}",
            retryable=True,
            details={"next_sequence": next_sequence, "first_sequence": first_sequence},
        )
        self.next_sequence = next_sequence


class BadLogQuery(StoreError):
    """A log query that the service does not support; clients see it as InvalidParameterException."""

    default_fault = Fault.USER


class SeriesMoved(StoreError):
    """Another thread joined or removed blocks of series during a read; read again."""
