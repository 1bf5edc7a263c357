"""STS: the caller's identity, and temporary keys.

The SDKs rewrite an assumed-role ARN into the role that they pass to CreateTrainingJob, and refuse a user's ARN. So a
temporary key is a session of the role that AssumeRole was asked for, and a job's key one of the job's role, called
SageMaker as on AWS; every other key is a session of the execution role. Temporary keys permit everything that the
owner's key permits: there is one trust domain, and every role has the owner's rights.
Source: AssumeRole, GetSessionToken (AWS STS API reference).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from clary.base.errors import WireError
from clary.control.permissions.temporary_keys import PREFIX
from clary.control.services.call import Call
from clary.control.state_folder import JOB_KEY_PREFIX

SESSION_NAME = "clary"
JOB_SESSION_NAME = "SageMaker"
FORBIDDEN = 403
ROLE_S = 3600
SESSION_S = 12 * 3600
_ROLE_ID = "AROACLARY"  # RoleId of every role, as `iam` returns it
# Policies that would restrict the key's rights, and codes of MFA devices: this service can enforce neither.
_NARROWING = ("Policy", "PolicyArns", "TokenCode", "SerialNumber")


async def get_caller_identity(call: Call) -> Mapping[str, Any]:
    """Return the caller's identity, which is a session of a role."""
    role, session = _caller(call)
    return {
        "UserId": f"{_ROLE_ID}:{session}",
        "Account": call.services.settings.account_id,
        "Arn": _session_arn(call, role, session),
    }


async def assume_role(call: Call) -> Mapping[str, Any]:
    """Make a temporary key for a role of the account.

    Raises: WireError AccessDenied or ValidationError.
    """
    role_arn, session = call.params["RoleArn"], call.params["RoleSessionName"]
    own = f"arn:aws:iam::{call.services.settings.account_id}:role/"
    role = _role_in(role_arn)
    if not role_arn.startswith(own) or not role:
        raise _denied(
            f"User: {_session_arn(call, *_caller(call))} is not authorized to perform: "
            f"sts:AssumeRole on resource: {role_arn[:200]}. Roles here begin with {own}"
        )
    answer = {
        "Credentials": _make_key(call, ROLE_S, holder=f"{role}/{session}"),
        "AssumedRoleUser": {"AssumedRoleId": f"{_ROLE_ID}:{session}", "Arn": _session_arn(call, role, session)},
    }
    source = call.params.get("SourceIdentity")
    return answer if source is None else {**answer, "SourceIdentity": source}


async def get_session_token(call: Call) -> Mapping[str, Any]:
    """Make a temporary key for the owner.

    Raises: WireError AccessDenied or ValidationError.
    """
    return {"Credentials": _make_key(call, SESSION_S)}


def _make_key(call: Call, default_s: int, *, holder: str = "") -> dict[str, Any]:
    if call.grants is not None or call.access_key_id.startswith((PREFIX, JOB_KEY_PREFIX)):
        # Otherwise a temporary key could be renewed for ever.
        raise _denied("Temporary keys are made for the owner's key alone: call with AWS_ACCESS_KEY_ID of `clary env`.")
    for name in _NARROWING:
        if call.params.get(name):
            raise WireError(
                "ValidationError",
                f"{name} is not supported: a temporary key permits all that the owner's key permits; leave {name} out.",
            )
    expires_at = call.services.clock.now() + timedelta(seconds=call.params.get("DurationSeconds", default_s))
    key = call.services.temporary_keys.make(expires_at, holder=holder)
    return {
        "AccessKeyId": key.access_key_id,
        "SecretAccessKey": key.secret_access_key,
        "SessionToken": key.session_token,
        "Expiration": key.expires_at,
    }


def _caller(call: Call) -> tuple[str, str]:
    """Return the role and the session that the caller's key stands for."""
    if call.holder:
        role, _, session = call.holder.partition("/")
        return role, session
    if call.access_key_id.startswith(JOB_KEY_PREFIX):
        job = call.services.hub.job_of_key(call.access_key_id)
        role = "" if job is None else _role_in(str(job.request.get("RoleArn", "")))
        if role:
            return role, JOB_SESSION_NAME
    return call.services.settings.role_name, SESSION_NAME


def _role_in(role_arn: str) -> str:
    """Return the name of a role, without the path before it: ARNs of sessions have no path."""
    return role_arn.rpartition("/")[2]


def _session_arn(call: Call, role: str, session: str) -> str:
    return f"arn:aws:sts::{call.services.settings.account_id}:assumed-role/{role}/{session}"


def _denied(message: str) -> WireError:
    return WireError("AccessDenied", message, http_status=FORBIDDEN)
