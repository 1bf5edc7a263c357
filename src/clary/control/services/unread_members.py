"""Members of requests that no handler reads, each with the reason why it has no effect.

Where: `docs/api.md` lists them. `control.jobs.members` lists the unread members of training job requests; every other
operation reads each of its members or lists it here, and a test compares this list with handlers and models.
"""

from __future__ import annotations

from collections.abc import Mapping

_ONE_ACCOUNT = "there is one account, and none is linked to it"
_NOTHING_MASKED = "nothing in a log is masked"
_ONE_PAGE = "the answer is one page"
_NO_POLICIES = "no policy is read here: the answer tells what this service allows, which is everything"
_NO_CONDITIONS = "roles have no policies whose conditions could refer to it"
_ONE_VALUE = "it has one value"
_EMPTY = "the list is empty for every role"
_NOTHING_STORED = (
    "no policy is stored or read: the operation has no effect, every policy exists and permits everything, and the "
    "service's log says so"
)
_NO_CHANGE = (
    "the operation has no effect: every role exists here and permits everything, whatever is attached to it, and the "
    "service's log says so"
)
_CHANGES = {
    "AttachRolePolicy": ("RoleName", "PolicyArn"),
    "DetachRolePolicy": ("RoleName", "PolicyArn"),
    "PutRolePolicy": ("RoleName", "PolicyName", "PolicyDocument"),
    "DeleteRolePolicy": ("RoleName", "PolicyName"),
    "TagRole": ("RoleName", "Tags"),
    "UntagRole": ("RoleName", "TagKeys"),
    "UpdateAssumeRolePolicy": ("RoleName", "PolicyDocument"),
    "UpdateRole": (
        "RoleName",
        "Description",
        "MaxSessionDuration",
        "MaxSigninSessionDuration",
        "ResetMaxSigninSessionDuration",
    ),
    "DeleteRole": ("RoleName",),
    "DeletePolicy": ("PolicyArn",),
    "DeletePolicyVersion": ("PolicyArn", "VersionId"),
    "SetDefaultPolicyVersion": ("PolicyArn", "VersionId"),
    "TagPolicy": ("PolicyArn", "Tags"),
    "UntagPolicy": ("PolicyArn", "TagKeys"),
}

UNREAD: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("sagemaker", "CreateHyperParameterTuningJob"): {
        "Autotune.Mode": _ONE_VALUE,
        "TrainingJobDefinition.HyperParameterTuningResourceConfig.AllocationStrategy": _ONE_VALUE,
        "TrainingJobDefinitions[].HyperParameterTuningResourceConfig.AllocationStrategy": _ONE_VALUE,
    },
    ("logs", "DescribeLogGroups"): {"includeLinkedAccounts": _ONE_ACCOUNT},
    ("logs", "GetLogEvents"): {"unmask": _NOTHING_MASKED},
    ("logs", "FilterLogEvents"): {"interleaved": "events always are", "unmask": _NOTHING_MASKED},
    ("sts", "AssumeRole"): {
        "PolicyArns[].arn": "a request with PolicyArns is refused",
        "Tags": _NO_CONDITIONS,
        "TransitiveTagKeys": _NO_CONDITIONS,
        "ExternalId": _NO_CONDITIONS,
        "ProvidedContexts": _NO_CONDITIONS,
        "MinimumSessionTokenSize": "tokens have one size",
    },
    ("sts", "GetSessionToken"): {"MinimumSessionTokenSize": "tokens have one size"},
    ("iam", "CreateRole"): dict.fromkeys(
        ("Description", "MaxSigninSessionDuration", "PermissionsBoundary", "Tags"),
        "every role exists: the operation is refused",
    ),
    ("iam", "GetUser"): {"UserName": "there are no users: the operation is refused"},
    ("iam", "ListAttachedRolePolicies"): {
        "RoleName": _EMPTY,
        "PathPrefix": _EMPTY,
        "Marker": _ONE_PAGE,
        "MaxItems": _ONE_PAGE,
    },
    ("iam", "CreatePolicy"): dict.fromkeys(("PolicyDocument", "Description", "Tags"), _NOTHING_STORED),
    ("iam", "CreatePolicyVersion"): dict.fromkeys(("PolicyDocument", "SetAsDefault"), _NOTHING_STORED),
    ("iam", "ListPolicyVersions"): {"Marker": _ONE_PAGE, "MaxItems": _ONE_PAGE},
    **{("iam", operation): dict.fromkeys(members, _NO_CHANGE) for operation, members in _CHANGES.items()},
    ("iam", "SimulatePrincipalPolicy"): {
        "PolicySourceArn": _NO_POLICIES,
        "PolicyInputList": _NO_POLICIES,
        "PermissionsBoundaryPolicyInputList": _NO_POLICIES,
        "PolicyExclusionList": _NO_POLICIES,
        "ResourcePolicy": _NO_POLICIES,
        "ResourceOwner": _NO_POLICIES,
        "CallerArn": _NO_POLICIES,
        "ContextEntries": _NO_POLICIES,
        "ResourceHandlingOption": _NO_POLICIES,
        "Marker": _ONE_PAGE,
        "MaxItems": _ONE_PAGE,
    },
    ("cloudwatch", "GetMetricData"): {"LabelOptions": "labels are returned as sent, without times"},
    ("cloudwatch", "ListMetrics"): {"IncludeLinkedAccounts": _ONE_ACCOUNT},
    ("cloudwatch", "PutMetricData"): {
        "EntityMetricData[].Entity": "a request with EntityMetricData is refused",
        "StrictEntityValidation": "a request with EntityMetricData is refused",
    },
}
