"""IAM operations on roles, for clients that check the execution role before they create a job.

Where: `iam_policies` has the operations on policies, `iam_changes` those without effect. There is one account and one
trust domain: the owner's key permits everything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from clary.base.errors import WireError
from clary.control.permissions.roles import CREATED_AT, LISTED_ROLE, ROOT, open_document, role_arn, role_path
from clary.control.services.call import Call

MAX_SESSION_S = 3600  # IAM's default for a new role

_TRUST_POLICY = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"}, "Action": "sts:AssumeRole"}],
}


async def get_role(call: Call) -> Mapping[str, Any]:
    """Describe a role; every role of the account exists and trusts SageMaker."""
    return {"Role": _role(call, call.params["RoleName"])}


async def create_role(call: Call) -> Mapping[str, Any]:
    """Refuse the call as for an existing role, after which clients go on with that role: every role exists."""
    raise WireError(
        "EntityAlreadyExists",
        f"Role with name {call.params['RoleName']} already exists: every role exists here and permits everything.",
        http_status=409,
    )


async def get_role_policy(call: Call) -> Mapping[str, Any]:
    """Return the document of a role's own policy, which permits everything."""
    role, policy = call.params["RoleName"], call.params["PolicyName"]
    return {"RoleName": role, "PolicyName": policy, "PolicyDocument": open_document()}


async def list_roles(call: Call) -> Mapping[str, Any]:
    """List the execution role, and one of the name that scripts look for; other roles' names are not stored.

    Raises: WireError ValidationError for a marker of another list.
    """
    prefix, marker = call.params.get("PathPrefix", ROOT), call.params.get("Marker", "")
    names = [name for name in _listed(call) if role_path(name).startswith(prefix)]
    if marker and marker not in names:
        raise WireError("ValidationError", f"Invalid Marker {marker[:100]!r}: send the one of the page before.")
    start = names.index(marker) if marker else 0
    end = start + call.params.get("MaxItems", len(names))
    answer = {"Roles": [_role(call, name) for name in names[start:end]], "IsTruncated": end < len(names)}
    return {**answer, "Marker": names[end]} if end < len(names) else answer


def _listed(call: Call) -> tuple[str, ...]:
    return tuple(dict.fromkeys((call.services.settings.role_name, LISTED_ROLE)))


def _role(call: Call, name: str) -> dict[str, Any]:
    return {
        "Path": role_path(name),
        "RoleName": name,
        "RoleId": "AROACLARY",
        "Arn": role_arn(call.services.settings.account_id, name),
        "CreateDate": CREATED_AT,
        "MaxSessionDuration": MAX_SESSION_S,
        # IAM returns the policy document URL-encoded (RFC 3986); clients decode it.
        "AssumeRolePolicyDocument": quote(json.dumps(_TRUST_POLICY)),
    }


async def get_user(call: Call) -> Mapping[str, Any]:
    """Refuse the call, because callers are sessions of a role."""
    raise WireError(
        "NoSuchEntity",
        "The caller is a session of a role, not a user; use sts:GetCallerIdentity.",
        http_status=404,
    ) from None
