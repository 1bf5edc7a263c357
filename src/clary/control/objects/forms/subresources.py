"""Refusal of subresources that the embedded store lacks, before it mistakes the request for another. Pure.

Where: `front` checks each request to the embedded store with this.
SeaweedFS ignores an unknown parameter: `DELETE /bucket?website` removes the bucket,
`PUT /bucket/key?encryption` replaces the object by the request's document, `PUT /bucket?logging` makes a bucket.
Source: Amazon S3 API reference; parameters that begin with x- do not change a request's meaning ("Logging requests").
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from html import unescape
from http import HTTPStatus

from clary.base.errors import WireError
from clary.contract.object_store.stored_names import MARK, may_match_others, stored_name
from clary.control.objects.s3_request import S3Request

MAX_SHOWN = 40  # characters of a parameter quoted in a refusal
_IGNORED = "x-"
# (method, whether there is a key) -> parameters that the store knows, for requests that change the store.
KNOWN: Mapping[tuple[str, bool], frozenset[str]] = {
    ("PUT", False): frozenset(
        (
            *("acl", "cors", "encryption", "lifecycle", "object-lock", "ownershipControls", "policy"),
            *("publicAccessBlock", "requestPayment", "tagging", "versioning"),
        )
    ),
    ("DELETE", False): frozenset(
        ("cors", "encryption", "lifecycle", "ownershipControls", "policy", "publicAccessBlock", "tagging")
    ),
    ("POST", False): frozenset(("delete",)),
    ("PUT", True): frozenset(("acl", "legal-hold", "partNumber", "retention", "tagging", "uploadId", "versionId")),
    ("DELETE", True): frozenset(("tagging", "uploadId", "versionId")),
    ("POST", True): frozenset(("uploadId", "uploads", "versionId")),
}
# Paths at which SeaweedFS itself answers probes.
STORE_PAGES = frozenset(("healthz", "readyz", "status"))
# Subresources of objects for which the store would return the object.
UNREADABLE = frozenset(("annotation", "torrent"))


_REPAIRS = ("s3:deletebucketpolicy", "s3:putbucketpolicy")
_PREFIX = re.compile(rb"<(?:\w+:)?Prefix[^>]*>([^<]*)</")


def check_store_pages(bucket: str, *, makes_bucket: bool) -> None:
    """Refuse a bucket that has the name of one of the store's own pages, which the store would return instead.

    Args:
        bucket: name of the bucket; empty for requests to the service.
        makes_bucket: whether the request would create the bucket.
    Raises: WireError(InvalidBucketName) for a request that creates it, else WireError(NoSuchBucket).
    """
    if bucket not in STORE_PAGES:
        return
    if makes_bucket:
        raise WireError(
            "InvalidBucketName",
            f"The specified bucket is not valid: {bucket!r} is a page of the embedded object store. Choose another "
            "name.",
        )
    raise WireError(
        "NoSuchBucket",
        f"The specified bucket does not exist: {bucket!r} is a page of the embedded object store, so no bucket can "
        "have this name.",
        http_status=HTTPStatus.NOT_FOUND,
    )


def check_subresources(asked: S3Request) -> None:
    """Refuse a request whose subresource the embedded store does not know.

    Raises: WireError(NotImplemented) that names it.
    """
    known = KNOWN.get((asked.method, bool(asked.key)))
    for name, _ in asked.query:
        if name.lower().startswith(_IGNORED):
            continue
        if name in UNREADABLE if known is None else name not in known:
            what = "an object" if asked.key else "a bucket"
            raise WireError(
                "NotImplemented",
                f"{asked.method} of {what} with ?{name[:MAX_SHOWN]} is not implemented by the embedded object store; "
                "nothing was changed.",
                http_status=HTTPStatus.NOT_IMPLEMENTED,
            )


def check_lifecycle(body: object) -> None:
    """Refuse rules whose prefix the embedded store would apply to other keys: it compares names of `stored_names`.

    Args:
        body: bytes of the document; any other body but None is too long to be looked at, and refused.
    Raises: WireError(NotImplemented).
    """
    if body is None:
        return
    if not isinstance(body, bytes):
        raise WireError(
            "NotImplemented",
            "A lifecycle configuration of more than 64 KiB is not implemented by the embedded object store.",
            http_status=HTTPStatus.NOT_IMPLEMENTED,
        )
    for found in _PREFIX.finditer(body):
        prefix = unescape(found[1].decode("utf-8", "replace"))
        if stored_name(prefix) != prefix or may_match_others(prefix) or MARK in prefix:
            raise WireError(
                "NotImplemented",
                f"Lifecycle rules for the prefix {prefix[:200]!r} are not implemented by the embedded object store: it "
                "has an empty part or a backslash, or ends with '[' or a part '.'.",
                http_status=HTTPStatus.NOT_IMPLEMENTED,
            )


def check_policy(body: object) -> None:
    """Refuse a policy that would close a bucket to its owner, since the embedded store lets nobody remove it again.

    The store is asked without TLS, so that a Deny for requests without it closes the bucket to every request.

    Args:
        body: bytes of the document; any other body but None is too long to be looked at, and refused.
    Raises: WireError: NotImplemented; MalformedPolicy for a document that is not JSON.
    """
    if body is None:
        return
    try:
        policy = json.loads(body) if isinstance(body, bytes) else {"Statement": {"Effect": "Deny"}}
    except (ValueError, RecursionError) as error:  # the store takes some, such as other bytes than UTF-8
        raise WireError("MalformedPolicy", "This policy contains invalid JSON.") from error
    for statement in _listed(_by_lower_name(policy).get("statement")):
        members = _by_lower_name(statement)
        if members.get("effect") == "Deny" and _closes_bucket(members):
            raise WireError(
                "NotImplemented",
                "A bucket policy whose Deny covers s3:PutBucketPolicy or s3:DeleteBucketPolicy, or depends on "
                "aws:SecureTransport, is not implemented by the embedded object store: it would close the bucket to "
                "its owner too. Leave the statement out; nothing was changed.",
                http_status=HTTPStatus.NOT_IMPLEMENTED,
            )


def _closes_bucket(statement: dict[str, object]) -> bool:
    if "action" not in statement or "aws:securetransport" in json.dumps(statement.get("condition", "")).lower():
        return True  # without Action, NotAction covers what it does not name
    patterns = [str(action).lower() for action in _listed(statement["action"])]
    return any(fnmatchcase(name, pattern) for name in _REPAIRS for pattern in patterns)


def _by_lower_name(value: object) -> dict[str, object]:
    """Return the members of a JSON object, whose names the store reads in any case; empty for another value."""
    return {name.lower(): member for name, member in value.items()} if isinstance(value, dict) else {}


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]
