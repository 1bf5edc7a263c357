"""IAM operations, for clients that check the execution role before they create a job.

There is one account and one trust domain: the owner's key permits everything, and IAM gives every key these answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from clary.base.errors import WireError
from clary.control.services.call import Call

ROOT = "/"
MAX_SESSION_S = 3600  # IAM's default for a new role

_TRUST_POLICY = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"}, "Action": "sts:AssumeRole"}],
}
_CREATED_AT = datetime(2026, 1, 1, tzinfo=UTC)


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


async def list_roles(call: Call) -> Mapping[str, Any]:
    """List only the execution role; every other name also names a role, but these names are not stored."""
    is_wanted = call.params.get("PathPrefix", ROOT) == ROOT
    return {"Roles": [_role(call, call.services.settings.role_name)] if is_wanted else [], "IsTruncated": False}


def _role(call: Call, name: str) -> dict[str, Any]:
    return {
        "Path": ROOT,
        "RoleName": name,
        "RoleId": "AROACLARY",
        "Arn": f"arn:aws:iam::{call.services.settings.account_id}:role/{name}",
        "CreateDate": _CREATED_AT,
        "MaxSessionDuration": MAX_SESSION_S,
        # IAM returns the policy document URL-encoded (RFC 3986); clients decode it.
        "AssumeRolePolicyDocument": quote(json.dumps(_TRUST_POLICY)),
    }


async def simulate_principal_policy(call: Call) -> Mapping[str, Any]:
    """Allow each action on each resource, as the service itself does for the owner."""
    resources = call.params.get("ResourceArns") or ["*"]
    results = [
        {"EvalActionName": action, "EvalResourceName": resource, "EvalDecision": "allowed"}
        for action in call.params["ActionNames"]
        for resource in resources
    ]
    return {"EvaluationResults": results, "IsTruncated": False}


async def list_attached_role_policies(call: Call) -> Mapping[str, Any]:
    """List the policies of a role: always an empty list, because roles need no policy."""
    del call
    return {"AttachedPolicies": [], "IsTruncated": False}


async def get_user(call: Call) -> Mapping[str, Any]:
    """Refuse the call, because callers are sessions of a role."""
    raise WireError(
        "NoSuchEntity",
        "The caller is a session of a role, not a user; use sts:GetCallerIdentity.",
        http_status=404,
    ) from None
