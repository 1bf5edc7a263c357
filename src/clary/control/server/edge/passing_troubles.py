"""Temporary failures, from a full disk or an unavailable database; the answer names the reason.

Where: the listener uses it for errors that no handler has caught. Clients and agents retry such a request.
"""

from __future__ import annotations

from clary.base.errors import Fault, StoreError
from clary.control import full_disks


def why_not_now(error: Exception) -> str:
    """Return why a request failed temporarily; empty if the failure is a defect of the service."""
    if isinstance(error, StoreError) and error.fault is Fault.INFRASTRUCTURE:
        return error.message
    if isinstance(error, OSError) and full_disks.is_refusal(error):
        return (
            f"{error.filename or 'a file of the service'} could not be written: {error.strerror}; {full_disks.WAY_OUT}"
        )
    return ""
