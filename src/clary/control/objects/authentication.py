"""Authentication of an S3 request's caller: Signature Version 4 in headers or query, and Version 2 in the query.

Where: `front` calls `authenticate` before it reads a byte of the body. Pure; the time and the keys are passed in.
Version 2 is accepted in presigned URLs alone, because boto3 makes those by default.
Source: Amazon S3 API reference, "Authenticating requests (AWS Signature Version 4)" and "Signing and authenticating
REST requests (AWS signature version 2)".
"""

from __future__ import annotations

import base64
import hmac
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import unquote

from clary.base.errors import ContractError, WireError
from clary.contract import sigv4
from clary.control.permissions.temporary_keys import TemporaryKeys, TokenVerdict

FORBIDDEN = 403
DIRECTORY_BUCKETS = "s3express"  # service in signatures of requests to directory buckets
REGION = "Region"  # key of the expected region in an error's details
MAX_EXPIRES_DIGITS = 12  # seconds since 1970; Python raises an error for numbers of thousands of digits

FindSecret = Callable[[str], str | None]

# Parameters that Version 2 signs as part of the resource.
V2_SUBRESOURCES = frozenset(
    {
        "acl",
        "cors",
        "delete",
        "encryption",
        "lifecycle",
        "location",
        "logging",
        "object-lock",
        "partNumber",
        "policy",
        "requestPayment",
        "response-cache-control",
        "response-content-disposition",
        "response-content-encoding",
        "response-content-language",
        "response-content-type",
        "response-expires",
        "restore",
        "retention",
        "tagging",
        "torrent",
        "uploadId",
        "uploads",
        "versionId",
        "versioning",
        "versions",
        "website",
    }
)
V2_HEADERS = frozenset({"content-type", "content-md5"})  # headers that Version 2 signs, besides x-amz-*


@dataclass(frozen=True, kw_only=True)
class ChunkSeed:
    """Start of the chain of a body's chunk signatures: signing key, date, scope and the headers' signature."""

    key: bytes
    amz_date: str
    scope: str
    signature: str  # signature of the headers


@dataclass(frozen=True, kw_only=True)
class Caller:
    """A verified caller, and the signature's coverage of the body."""

    access_key_id: str
    payload_hash: str  # SHA-256 in hexadecimal, or a keyword of S3
    seed: ChunkSeed | None = None  # None for presigned URLs


def authenticate(
    request: sigv4.SigningRequest,
    *,
    find_secret: FindSecret,
    now: datetime,
    skew_s: float,
    host_bucket: str | None = None,
    region: str | None = None,
    temporary: TemporaryKeys | None = None,
) -> Caller:
    """Verify the signature of a request.

    Args:
        request: the original request, path and query still encoded.
        find_secret: secret access key of an access key id, None if it is unknown.
        now: aware time of day.
        skew_s: largest difference of the request's time from `now`.
        host_bucket: bucket named by the Host header, None if the path names it. Version 2 signs this bucket, not the
            Host header.
        region: the only region that a signature may name; None accepts every region. Version 2 names no region.
        temporary: verifies keys with a session token; None refuses them.
    Raises: WireError AccessDenied, InvalidAccessKeyId, InvalidToken, ExpiredToken, InvalidRequest,
        InvalidArgument, SignatureDoesNotMatch, RequestTimeTooSkewed, MissingSecurityHeader,
        AuthorizationHeaderMalformed, AuthorizationQueryParametersError or NotImplemented.
    """
    headers = {name.lower(): value for name, value in request.headers}
    parameters = {name.lower(): value for name, value in _parameters(request.query).items()}
    token = headers.get(sigv4.SECURITY_TOKEN) or parameters.get(sigv4.SECURITY_TOKEN) or ""
    return _authenticate(
        request,
        find_secret=with_token(find_secret, token, temporary, now=now),
        now=now,
        skew_s=skew_s,
        host_bucket=host_bucket,
        region=region,
    )


def with_token(find_secret: FindSecret, token: str, temporary: TemporaryKeys | None, *, now: datetime) -> FindSecret:
    """Return the function that finds the secret of a key sent with `token`; `find_secret` for an empty token.

    The returned function raises WireError InvalidToken for a token that does not belong to the key, and ExpiredToken.

    Args:
        find_secret: finds the secrets of the owner's key and of the keys of jobs.
        token: session token of the request; empty without one.
        temporary: verifies keys with a session token; None refuses every token.
        now: aware time of day.
    """
    if not token:
        return find_secret

    def find(access_key_id: str) -> str | None:
        verdict = TokenVerdict() if temporary is None else temporary.judge(access_key_id, token, now=now)
        if verdict.has_expired:
            raise WireError("ExpiredToken", "The provided token has expired.")
        if not verdict.secret:
            raise WireError("InvalidToken", f"The provided token is malformed or otherwise invalid. {sigv4.TOKEN_HINT}")
        return verdict.secret

    return find


def check_region(found: str, expected: str | None, *, code: str, what: str) -> None:
    """Refuse a signature for another region, with the message from which clients read the right region.

    Args:
        found: region of the credential's scope.
        expected: the region of this service; None accepts every region.
        code: code of the error, which differs for headers, URLs and forms.
        what: beginning of the error message.
    Raises: WireError with the region in its details.
    """
    if expected is None or found == expected:
        return
    error = WireError(code, f"{what}; the region {found[:80]!r} is wrong; expecting {expected!r}")
    error.details[REGION] = expected
    raise error


def _authenticate(
    request: sigv4.SigningRequest,
    *,
    find_secret: FindSecret,
    now: datetime,
    skew_s: float,
    host_bucket: str | None,
    region: str | None,
) -> Caller:
    headers = {name.lower(): value for name, value in request.headers}
    header = headers.get("authorization")
    if header is not None:
        return _authenticate_header(request, headers, find_secret=find_secret, now=now, skew_s=skew_s, region=region)
    try:
        presigned = sigv4.parse_presigned(request.query)
    except ContractError as error:
        raise WireError("AuthorizationQueryParametersError", error.message) from error
    if presigned is not None:
        return _authenticate_presigned(
            request, headers, presigned, find_secret=find_secret, now=now, skew_s=skew_s, region=region
        )
    parameters = _parameters(request.query)
    if "AWSAccessKeyId" in parameters and "Signature" in parameters:
        return _authenticate_version_2(
            request, parameters, find_secret=find_secret, now=now, skew_s=skew_s, host_bucket=host_bucket
        )
    raise WireError("AccessDenied", "Access Denied: the request is not signed.", http_status=FORBIDDEN)


def _authenticate_header(
    request: sigv4.SigningRequest,
    headers: dict[str, str],
    *,
    find_secret: FindSecret,
    now: datetime,
    skew_s: float,
    region: str | None,
) -> Caller:
    if not headers["authorization"].lstrip().startswith(sigv4.ALGORITHM):
        raise WireError(
            "InvalidRequest",
            f"The authorization mechanism you have provided is not supported. Please use {sigv4.ALGORITHM}.",
        )
    try:
        authorization = sigv4.parse_authorization(headers["authorization"])
        amz_date = headers.get("x-amz-date", "")
        if not amz_date:
            raise WireError(
                "AccessDenied", "AWS authentication requires a valid x-amz-date header", http_status=FORBIDDEN
            )
        signed_at = sigv4.parse_date(amz_date)
    except ContractError as error:
        raise WireError("AuthorizationHeaderMalformed", error.message) from error
    payload_hash = headers.get("x-amz-content-sha256", "")
    if not payload_hash:
        raise WireError(
            "MissingSecurityHeader",
            "Your request is missing a required header: x-amz-content-sha256",
        )
    _check_service(authorization)
    secret = secret_of(authorization.access_key_id, find_secret)
    check_region(
        authorization.region,
        region,
        code="AuthorizationHeaderMalformed",
        what="The authorization header is malformed",
    )
    if abs(now - signed_at) > timedelta(seconds=skew_s):
        raise WireError(
            "RequestTimeTooSkewed",
            f"The difference between the request time ({amz_date}) and the current time "
            f"({now.strftime(sigv4.DATE_FORMAT)}) is too large: the limit is {skew_s:.0f} s.",
            http_status=FORBIDDEN,
        )
    key = _verify(request, headers, authorization, amz_date=amz_date, payload_hash=payload_hash, secret=secret)
    return Caller(
        access_key_id=authorization.access_key_id,
        payload_hash=payload_hash,
        seed=ChunkSeed(key=key, amz_date=amz_date, scope=authorization.scope, signature=authorization.signature),
    )


def _authenticate_presigned(
    request: sigv4.SigningRequest,
    headers: dict[str, str],
    presigned: sigv4.PresignedAuthorization,
    *,
    find_secret: FindSecret,
    now: datetime,
    skew_s: float,
    region: str | None,
) -> Caller:
    try:
        signed_at = sigv4.parse_date(presigned.amz_date)
    except ContractError as error:
        raise WireError("AuthorizationQueryParametersError", error.message) from error
    authorization = presigned.authorization
    _check_service(authorization)
    secret = secret_of(authorization.access_key_id, find_secret)
    check_region(
        authorization.region,
        region,
        code="AuthorizationQueryParametersError",
        what="Error parsing the X-Amz-Credential parameter",
    )
    if signed_at - now > timedelta(seconds=skew_s):
        raise WireError("AccessDenied", "Request is not valid yet", http_status=FORBIDDEN)
    if now - signed_at > timedelta(seconds=presigned.expires_s):
        raise WireError("AccessDenied", "Request has expired", http_status=FORBIDDEN)
    payload_hash = headers.get("x-amz-content-sha256", presigned.payload_hash)
    unsigned = sigv4.SigningRequest(request.method, request.raw_path, presigned.unsigned_query, request.headers)
    _verify(unsigned, headers, authorization, amz_date=presigned.amz_date, payload_hash=payload_hash, secret=secret)
    return Caller(access_key_id=authorization.access_key_id, payload_hash=payload_hash)


def _authenticate_version_2(
    request: sigv4.SigningRequest,
    parameters: dict[str, str],
    *,
    find_secret: FindSecret,
    now: datetime,
    skew_s: float,
    host_bucket: str | None,
) -> Caller:
    secret = secret_of(parameters["AWSAccessKeyId"], find_secret)
    expires = parameters.get("Expires", "")
    if not (expires.isascii() and expires.isdigit() and len(expires) <= MAX_EXPIRES_DIGITS):
        raise WireError("AccessDenied", "Query-string authentication requires Expires", http_status=FORBIDDEN)
    left_s = int(expires) - now.timestamp()
    if left_s < 0:
        raise WireError("AccessDenied", "Request has expired", http_status=FORBIDDEN)
    # The URL does not contain the time of signing: a URL that expires more than a week from now is refused.
    if left_s > sigv4.PRESIGNED_MAX_EXPIRES_S + skew_s:
        raise WireError(
            "AccessDenied",
            f"Expires must be less than a week (in seconds: {sigv4.PRESIGNED_MAX_EXPIRES_S}) in the future, as for "
            "Signature Version 4: presign again for a shorter time",
            http_status=FORBIDDEN,
        )
    _check_single_values(request)
    # Signers move x-amz-* and content-* headers into the query of the URL, but sign them as headers.
    lowered = {name.lower(): value for name, value in parameters.items()}
    signed = {name: value for name, value in lowered.items() if name.startswith(("x-amz-", "content-"))}
    for name, value in request.headers:
        signed[name.lower()] = value.strip()
    amz_lines = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed) if name.startswith("x-amz-"))
    subresources = sorted((name, value) for name, value in _pairs(request.query) if name in V2_SUBRESOURCES)
    resource = f"/{host_bucket}{request.raw_path}" if host_bucket else request.raw_path
    if subresources:
        resource += "?" + "&".join(name if value is None else f"{name}={value}" for name, value in subresources)
    text = (
        f"{request.method}\n{signed.get('content-md5', '')}\n{signed.get('content-type', '')}\n{expires}\n"
        f"{amz_lines}{resource}"
    )
    expected = base64.b64encode(hmac.digest(secret.encode(), text.encode("utf-8", "surrogateescape"), "sha1"))
    if not hmac.compare_digest(expected, parameters["Signature"].encode("utf-8", "surrogateescape")):
        raise mismatch()
    return Caller(access_key_id=parameters["AWSAccessKeyId"], payload_hash=sigv4.UNSIGNED_PAYLOAD)


def _check_single_values(request: sigv4.SigningRequest) -> None:
    """Refuse values that a signature of version 2 would not cover: it signs one value of a name, the store gets all."""
    in_query = [(name.lower(), value or "") for name, value in _pairs(request.query)]
    in_headers = [(name.lower(), value.strip()) for name, value in request.headers]
    for pairs in (in_query, in_headers):
        counts = Counter(name for name, _ in pairs if name.startswith("x-amz-") or name in V2_HEADERS)
        for name, count in counts.items():
            if count > 1:
                raise _repeated(name)
    values = dict(in_headers)
    for name, value in in_query:
        if name.startswith("x-amz-") and values.get(name, value) != value:
            raise _repeated(name)


def _repeated(name: str) -> WireError:
    return WireError(
        "InvalidArgument",
        f"{name[:80]} has several values, of which Signature Version 2 signs one: send one value, in the URL or in a "
        "header, or presign by Signature Version 4.",
    )


def secret_of(access_key_id: str, find_secret: FindSecret) -> str:
    """Return the secret of a key. Raises: WireError InvalidAccessKeyId if it is unknown."""
    secret = find_secret(access_key_id)
    if secret is None:
        raise WireError(
            "InvalidAccessKeyId",
            "The AWS Access Key Id you provided does not exist in our records.",
            http_status=FORBIDDEN,
        )
    return secret


def _check_service(authorization: sigv4.Authorization) -> None:
    if authorization.service == DIRECTORY_BUCKETS:
        raise WireError(
            "NotImplemented", "Directory buckets are not offered here: use a bucket of another name.", http_status=501
        )
    if authorization.service != "s3":
        raise WireError(
            "AuthorizationHeaderMalformed",
            f"The authorization header is malformed; incorrect service {authorization.service!r}. This endpoint "
            "belongs to 's3'.",
        )


def _verify(
    request: sigv4.SigningRequest,
    headers: dict[str, str],
    authorization: sigv4.Authorization,
    *,
    amz_date: str,
    payload_hash: str,
    secret: str,
) -> bytes:
    """Check the signature, and that it covers the needed headers; return the signing key."""
    if authorization.date != amz_date[:8]:
        raise WireError(
            "AuthorizationHeaderMalformed",
            f"The authorization header is malformed; the credential's date {authorization.date} is not that of "
            f"x-amz-date {amz_date}.",
        )
    uncovered = {name for name in headers if name.startswith("x-amz-") or name == "host"} - set(
        authorization.signed_headers
    )
    if uncovered or "host" not in authorization.signed_headers:
        raise WireError(
            "AccessDenied",
            f"There were headers present in the request which were not signed: {', '.join(sorted(uncovered))}",
            http_status=FORBIDDEN,
        )
    key = sigv4.signing_key(secret, date=authorization.date, region=authorization.region, service=authorization.service)
    for normalize in (False, True):
        canonical = sigv4.canonical_request(
            request, authorization.signed_headers, payload_hash=payload_hash, service="s3", normalize=normalize
        )
        text = sigv4.string_to_sign(canonical, amz_date=amz_date, scope=authorization.scope)
        if hmac.compare_digest(sigv4.signature(key, text), authorization.signature):
            return key
    raise mismatch()


def mismatch() -> WireError:
    """Return the error for a signature made with another key or over another request."""
    return WireError(
        "SignatureDoesNotMatch",
        "The request signature we calculated does not match the signature you provided. Check your key and signing "
        "method.",
        http_status=FORBIDDEN,
    )


def _pairs(query: str) -> Sequence[tuple[str, str | None]]:
    pairs: list[tuple[str, str | None]] = []
    for part in query.split("&"):
        name, equals, value = part.partition("=")
        if name:
            pairs.append((unquote(name), unquote(value) if equals else None))
    return pairs


def _parameters(query: str) -> dict[str, str]:
    return {name: value or "" for name, value in _pairs(query)}
