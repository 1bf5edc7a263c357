"""STS: who am I.

The SDKs rewrite an assumed-role ARN into the role that they pass to CreateTrainingJob, and refuse a user's ARN.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clary.control.services.call import Call

SESSION_NAME = "clary"


async def get_caller_identity(call: Call) -> Mapping[str, Any]:
    """Say that the caller is a session of the execution role."""
    settings = call.services.settings
    return {
        "UserId": f"AROACLARY:{SESSION_NAME}",
        "Account": settings.account_id,
        "Arn": f"arn:aws:sts::{settings.account_id}:assumed-role/{settings.role_name}/{SESSION_NAME}",
    }
