"""The error of every command that gets no answer from the service, with an exit code of its own.

Where: `connection` raises it, `patience` repeats requests after it, `main` makes the exit code of it.
"""

from __future__ import annotations

from clary.base.errors import ClaryError, Fault

EXIT_NO_ANSWER = 69  # EX_UNAVAILABLE of sysexits.h; 1 would say that a job or a check has failed


class NoAnswer(ClaryError):
    """No service runs here, or the service that was asked does not answer.

    Args:
        message: the service, why it does not answer, what to do.
        is_sent: whether the request may have been carried out, and only its answer was lost.
    """

    default_fault = Fault.INFRASTRUCTURE

    def __init__(self, message: str, *, is_sent: bool = False) -> None:
        super().__init__(message, retryable=True)
        self.is_sent = is_sent
