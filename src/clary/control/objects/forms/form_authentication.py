"""Verification of the signature of a browser upload's policy, by Signature Version 4 or Version 2.

Where: `form_upload` calls `authenticate_form` before it parses the policy. Pure; the time and the keys are passed in.
boto3 uses Version 2 by default.
Source: Amazon S3 API reference, "Authenticating Requests: Browser-Based Uploads Using POST (AWS Signature Version 4)"
and "Browser-based uploads using POST (AWS signature version 2)".
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from datetime import datetime, timedelta

from clary.base.errors import ContractError, WireError
from clary.contract import sigv4
from clary.control.objects.authentication import (
    FORBIDDEN,
    FindSecret,
    check_region,
    mismatch,
    secret_of,
    with_token,
)
from clary.control.permissions.temporary_keys import TemporaryKeys

_NEEDED = ("policy", "x-amz-algorithm", "x-amz-credential", "x-amz-date")
_MALFORMED = "AuthorizationQueryParametersError"


def authenticate_form(
    fields: Mapping[str, str],
    *,
    find_secret: FindSecret,
    now: datetime,
    skew_s: float,
    region: str | None,
    temporary: TemporaryKeys | None = None,
) -> str:
    """Return the access key id whose owner signed the policy of a form.

    Args:
        fields: lower-case name -> value.
        find_secret: secret access key of an access key id, None if it is unknown.
        now: aware time of day.
        skew_s: largest number of seconds by which the signature may be in the future.
        region: the only region that a signature may name; None accepts every region.
        temporary: verifies keys with a session token; None refuses them.
    Raises: WireError AccessDenied, InvalidArgument, InvalidAccessKeyId, InvalidToken, ExpiredToken,
        SignatureDoesNotMatch or AuthorizationQueryParametersError.
    """
    find_secret = with_token(find_secret, fields.get(sigv4.SECURITY_TOKEN, ""), temporary, now=now)
    if "x-amz-signature" in fields:
        return _version_4(fields, find_secret=find_secret, now=now, skew_s=skew_s, region=region)
    if "signature" in fields:
        return _version_2(fields, find_secret=find_secret)
    raise WireError("AccessDenied", "Access Denied: the form has no signed policy.", http_status=FORBIDDEN)


def _version_4(
    fields: Mapping[str, str], *, find_secret: FindSecret, now: datetime, skew_s: float, region: str | None
) -> str:
    for name in _NEEDED:
        if not fields.get(name):
            raise _missing(name)
    if fields["x-amz-algorithm"] != sigv4.ALGORITHM:
        raise WireError("InvalidArgument", f"x-amz-algorithm must be {sigv4.ALGORITHM}.")
    try:
        # The fields are parsed as an Authorization header; a credential with white space or commas makes it invalid.
        authorization = sigv4.parse_authorization(
            f"{sigv4.ALGORITHM} Credential={fields['x-amz-credential']}, SignedHeaders=policy, "
            f"Signature={fields['x-amz-signature']}"
        )
        signed_at = sigv4.parse_date(fields["x-amz-date"])
    except ContractError as error:
        raise WireError(_MALFORMED, error.message) from error
    secret = secret_of(authorization.access_key_id, find_secret)
    check_region(authorization.region, region, code=_MALFORMED, what="Error parsing the X-Amz-Credential parameter")
    if authorization.service != "s3" or authorization.date != fields["x-amz-date"][:8]:
        raise WireError(
            _MALFORMED, "The scope of X-Amz-Credential must be of the service s3 and the day of X-Amz-Date."
        )
    age = now - signed_at
    if age < -timedelta(seconds=skew_s):
        raise WireError("AccessDenied", "The form's policy is not valid yet.", http_status=FORBIDDEN)
    # A policy may have any expiration; the signing key is valid for a week.
    if age > timedelta(seconds=sigv4.PRESIGNED_MAX_EXPIRES_S + skew_s):
        raise WireError(
            "AccessDenied", "The form's policy was signed more than a week ago: sign it again.", http_status=FORBIDDEN
        )
    key = sigv4.signing_key(secret, date=authorization.date, region=authorization.region, service="s3")
    if not hmac.compare_digest(sigv4.signature(key, fields["policy"]), authorization.signature):
        raise mismatch()
    return authorization.access_key_id


def _version_2(fields: Mapping[str, str], *, find_secret: FindSecret) -> str:
    for name in ("policy", "awsaccesskeyid"):
        if not fields.get(name):
            raise _missing(name)
    secret = secret_of(fields["awsaccesskeyid"], find_secret)
    expected = base64.b64encode(hmac.digest(secret.encode(), fields["policy"].encode(), "sha1"))
    if not hmac.compare_digest(expected, fields["signature"].encode()):
        raise mismatch()
    return fields["awsaccesskeyid"]


def _missing(name: str) -> WireError:
    return WireError("InvalidArgument", f"Bucket POST must contain a field named {name!r}.")
