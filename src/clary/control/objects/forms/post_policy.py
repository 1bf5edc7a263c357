"""Policies of browser uploads: conditions, signed by the owner of a key, on uploads in the owner's name.

Where: `form_upload` uses it once the policy's signature is verified. Pure; the time is passed in.
The holder of the form sends the policy, which may be any JSON. Each field of the form must be covered by a condition
and meet it, except FREE_FIELDS and fields that begin with `x-ignore-`; bucket and key must be covered.
Source: Amazon S3 API reference, "POST Policy".
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from clary.base.errors import WireError

FORBIDDEN = 403
MAX_OBJECT_BYTES = 5 * 1024**3  # S3 API reference: the largest object in one request
MAX_CONDITIONS = 200
MAX_DIGITS = 18
FREE_FIELDS = frozenset({"x-amz-signature", "signature", "awsaccesskeyid", "file", "policy"})
IGNORED_PREFIX = "x-ignore-"
REQUIRED = ("bucket", "key")

_EXPIRATION = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d{1,9})?Z")


@dataclass(frozen=True)
class Condition:
    """A condition on one field of a form."""

    is_prefix: bool
    field: str  # lower case
    value: str

    def is_met_by(self, value: str) -> bool:
        """Whether the value of a field meets the condition."""
        if not self.is_prefix:
            return value == self.value
        # A content type may be a list, whose items must all meet the condition.
        values = value.split(",") if self.field == "content-type" else [value]
        return all(
            one.strip().startswith(self.value) if len(values) > 1 else one.startswith(self.value) for one in values
        )

    def __str__(self) -> str:
        return json.dumps(["starts-with" if self.is_prefix else "eq", f"${self.field}", self.value])


@dataclass(frozen=True, kw_only=True)
class PostPolicy:
    """A parsed policy."""

    expires_at: datetime
    conditions: tuple[Condition, ...]
    least_bytes: int = 0
    most_bytes: int = MAX_OBJECT_BYTES

    def check(self, fields: Mapping[str, str], *, now: datetime) -> None:
        """Check the fields of a form, the bucket among them.

        Args:
            fields: lower-case name -> value.
            now: aware time of day.
        Raises: WireError AccessDenied, naming the condition that is not met or the fields without a condition.
        """
        if now > self.expires_at:
            raise _denied("Policy expired.")
        covered = {condition.field for condition in self.conditions}
        for name in REQUIRED:
            if name not in covered:
                raise _denied(f"Policy Condition failed: no condition names ${name}.")
        for condition in self.conditions:
            if not condition.is_met_by(fields.get(condition.field, "")):
                raise _denied(f"Policy Condition failed: {condition}")
        extra = sorted(
            name
            for name in fields
            if name not in covered and name not in FREE_FIELDS and not name.startswith(IGNORED_PREFIX)
        )
        if extra:
            raise _denied(f"Extra input fields: {', '.join(extra)[:500]}")


def read_policy(encoded: str) -> PostPolicy:
    """Parse the policy of a form, given in Base64.

    Raises: WireError InvalidPolicyDocument naming the problem.
    """
    try:
        document = json.loads(base64.b64decode(encoded, validate=True))
    except (binascii.Error, ValueError, RecursionError) as error:  # deep nesting, numbers of thousands of digits
        raise _invalid("Invalid JSON") from error
    if not isinstance(document, dict) or set(document) != {"expiration", "conditions"}:
        raise _invalid("it must have 'expiration' and 'conditions', and nothing else")
    found = document["conditions"]
    if not isinstance(found, list) or not 0 < len(found) <= MAX_CONDITIONS:
        raise _invalid(f"'conditions' must be a list of 1 to {MAX_CONDITIONS}")
    conditions: list[Condition] = []
    least, most = 0, MAX_OBJECT_BYTES
    for number, item in enumerate(found):
        if isinstance(item, list) and item and _word(item[0]) == "content-length-range":
            low, high = _range(item)
            least, most = max(least, low), min(most, high)
        else:
            conditions.extend(_conditions(item, number))
    return PostPolicy(
        expires_at=_expiration(document["expiration"]),
        conditions=tuple(conditions),
        least_bytes=least,
        most_bytes=most,
    )


def _conditions(item: Any, number: int) -> list[Condition]:
    if isinstance(item, dict) and item:
        return [Condition(False, name.lower(), _value(value)) for name, value in item.items()]
    if isinstance(item, list) and len(item) == 3 and isinstance(item[1], str) and item[1].startswith("$"):
        operator = _word(item[0])
        if operator in ("eq", "starts-with"):
            return [Condition(operator == "starts-with", item[1][1:].lower(), _value(item[2]))]
    raise _invalid(f"condition {number} is not one that S3 knows")


def _range(item: list[Any]) -> tuple[int, int]:
    if len(item) == 3:
        low, high = _size(item[1]), _size(item[2])
        if low <= high:
            return low, high
    raise _invalid("content-length-range needs a minimum and a maximum number of bytes")


def _size(value: Any) -> int:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS:
        return int(text)
    raise _invalid("content-length-range needs two whole numbers of bytes")


def _value(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str):
        return value
    raise _invalid("the value of a condition must be text")


def _word(value: Any) -> str:
    return value.lower() if isinstance(value, str) else ""


def _expiration(value: Any) -> datetime:
    found = _EXPIRATION.fullmatch(value) if isinstance(value, str) else None
    try:
        if found is not None:
            return datetime.fromisoformat(found[1]).replace(tzinfo=UTC)
    except ValueError as error:
        raise _invalid("Invalid 'expiration' value") from error
    raise _invalid("Invalid 'expiration' value: a time like 2026-01-31T23:59:59Z is expected")


def _invalid(what: str) -> WireError:
    return WireError("InvalidPolicyDocument", f"Invalid Policy: {what}.")


def _denied(what: str) -> WireError:
    return WireError("AccessDenied", f"Invalid according to Policy: {what}", http_status=FORBIDDEN)
