"""Temporary failures, from a full or broken disk or an unavailable database; the answer names the reason.

Where: the listener uses it for errors that no handler has caught. Clients and agents retry such a request.
"""

from __future__ import annotations

from clary.base.errors import Fault, StoreError
from clary.control import full_disks


def why_not_now(error: Exception) -> str:
    """Return why a request failed temporarily; empty if the failure is a defect of the service."""
    if isinstance(error, StoreError) and error.fault is Fault.INFRASTRUCTURE:
        return error.message
    if isinstance(error, OSError) and (way_out := full_disks.way_out(error)):
        done = "written" if full_disks.is_refusal(error) else "read or written"
        return f"{error.filename or 'a file of the service'} could not be {done}: {error.strerror}; {way_out}"
    return ""
