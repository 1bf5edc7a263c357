"""Chooses the handler of a request, by its head alone.

Where: the listener's routes call these functions in order.
"""

from __future__ import annotations

from aiohttp import web

HEALTH_PATH = "/clary/v1/health"
INTERNAL_PREFIX = "/clary/v1/"
METRICS_PATH = "/metrics"
CONSOLE_PATH = "/console"
API_CONTENT_TYPES = (
    "application/x-amz-json",
    "application/json",
    "application/x-www-form-urlencoded",
    "application/cbor",
)

# s3express: directory buckets, which the S3 front refuses in XML
_S3_SCOPES = ("/s3/aws4_request", "/s3express/aws4_request")


def is_health(request: web.BaseRequest) -> bool:
    """Whether a request is the health check."""
    return request.raw_path == HEALTH_PATH and request.method == "GET"


def is_console(request: web.BaseRequest) -> bool:
    """Whether a browser requests the console: AWS clients sign, name an action, or do not accept HTML."""
    path, _, query = request.raw_path.partition("?")
    if request.method not in ("GET", "HEAD") or "Authorization" in request.headers:
        return False
    if path == "/":
        return "text/html" in request.headers.get("Accept", "") and "Action=" not in query
    return path == CONSOLE_PATH or path.startswith(f"{CONSOLE_PATH}/")


def is_internal(request: web.BaseRequest) -> bool:
    """Whether a request is for the service's own pages, the metrics among them.

    Requests signed for S3 and a bucket called metrics have matched an earlier route.
    """
    is_metrics = request.method == "GET" and request.raw_path.partition("?")[0] == METRICS_PATH
    return is_metrics or request.raw_path.startswith(INTERNAL_PREFIX)


def is_signed_for_s3(request: web.BaseRequest) -> bool:
    """Whether a request has a signature for S3, in headers or query: by its scope, or of version 2."""
    authorization = request.headers.get("Authorization")
    if authorization is not None:
        # Signatures of version 2 begin like this; only the S3 front handles them (it refuses them in headers).
        return any(scope in authorization for scope in _S3_SCOPES) or authorization.startswith("AWS ")
    query = request.raw_path.partition("?")[2]
    if "X-Amz-Credential=" in query:
        return any(scope in query or scope.replace("/", "%2F") in query for scope in _S3_SCOPES)
    return "AWSAccessKeyId=" in query and "Action=" not in query


def looks_like_s3(request: web.BaseRequest) -> bool:
    """Whether a request that is not signed for S3 shows no sign of another AWS service, so it may be for S3."""
    headers = request.headers
    query = request.raw_path.partition("?")[2]
    if "Authorization" in headers or "X-Amz-Target" in headers or "Action=" in query or "X-Amz-Credential=" in query:
        return False
    return not headers.get("Content-Type", "").startswith(API_CONTENT_TYPES)
