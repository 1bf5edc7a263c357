"""IAM operations on policies. Every policy exists, has one version, and permits everything, as the service itself does.

Where: clients attach or check policies of the execution role before they create a job. No policy is stored or read,
and lists of policies are empty. `iam_changes` has the operations that return nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clary.base.errors import WireError
from clary.control.permissions.roles import CREATED_AT, ROOT, open_document
from clary.control.services.call import Call
from clary.control.services.iam_changes import say_without_effect

VERSION = "v1"


async def create_policy(call: Call) -> Mapping[str, Any]:
    """Answer as for a new policy of the account; nothing is stored."""
    say_without_effect("CreatePolicy")
    name, path = call.params["PolicyName"], call.params.get("Path", ROOT)
    return {"Policy": _policy(f"arn:aws:iam::{call.services.settings.account_id}:policy{path}{name}")}


async def create_policy_version(call: Call) -> Mapping[str, Any]:
    """Answer with the version that the policy has; nothing is stored."""
    del call
    say_without_effect("CreatePolicyVersion")
    return {"PolicyVersion": _version()}


async def get_policy(call: Call) -> Mapping[str, Any]:
    """Describe a policy; every ARN names one."""
    return {"Policy": _policy(call.params["PolicyArn"])}


async def get_policy_version(call: Call) -> Mapping[str, Any]:
    """Return a policy's document, which permits everything. Raises: WireError NoSuchEntity for another version."""
    if call.params["VersionId"] != VERSION:
        raise WireError(
            "NoSuchEntity",
            f"Policy {call.params['PolicyArn']} version {call.params['VersionId']} does not exist: every policy has "
            f"the one version {VERSION} here, and permits everything.",
            http_status=404,
        )
    return {"PolicyVersion": {**_version(), "Document": open_document()}}


async def list_policy_versions(call: Call) -> Mapping[str, Any]:
    """List the one version that every policy has."""
    del call
    return {"Versions": [_version()], "IsTruncated": False}


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


def _policy(arn: str) -> dict[str, Any]:
    resource = arn.partition(":policy")[2]
    path, _, name = resource.rpartition("/")
    return {
        "PolicyName": name,
        "PolicyId": "ANPACLARY",
        "Arn": arn,
        "Path": f"{path}/",
        "DefaultVersionId": VERSION,
        "AttachmentCount": 0,
        "IsAttachable": True,
        "CreateDate": CREATED_AT,
        "UpdateDate": CREATED_AT,
    }


def _version() -> dict[str, Any]:
    return {"VersionId": VERSION, "IsDefaultVersion": True, "CreateDate": CREATED_AT}
