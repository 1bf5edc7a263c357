"""Paths and ARNs of roles, and the policy of all of them.

Every role of the account exists, so that a role's name alone tells its path.

Where: `services.iam` describes roles with it, and `client_files` names the execution role.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from urllib.parse import quote

ROOT = "/"
SERVICE_PATH = "/service-role/"
# AWS's consoles make roles of such names below `SERVICE_PATH`, and the SDKs expect them there.
SERVICE_PREFIX = "AmazonSageMaker-ExecutionRole"
CREATED_AT = datetime(2026, 1, 1, tzinfo=UTC)  # of every role and policy
LISTED_ROLE = f"{SERVICE_PREFIX}-clary"  # listed for scripts that look for a role of such a name


def role_path(name: str) -> str:
    """Return the path of a role, with a slash at both ends."""
    return SERVICE_PATH if name.startswith(SERVICE_PREFIX) else ROOT


def role_arn(account_id: str, name: str) -> str:
    """Return the ARN of a role, with its path."""
    return f"arn:aws:iam::{account_id}:role{role_path(name)}{name}"


def open_document() -> str:
    """Return the document of every policy, which permits everything, URL-encoded (RFC 3986) as IAM returns it."""
    statement = {"Effect": "Allow", "Action": "*", "Resource": "*"}
    return quote(json.dumps({"Version": "2012-10-17", "Statement": [statement]}))
