"""Uploads by a browser's form: the object that the form makes, its headers, and the answer.

Where: `front` reads a form's fields with `form_data` and calls `judge_form` before it reads the file. Pure; the time
and the keys are passed in. A caller without a key can upload only under a policy that the owner of a key has signed.
Source: Amazon S3 API reference, "POST Object".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import urlencode, urlsplit
from xml.sax.saxutils import escape

from clary.base.errors import WireError
from clary.contract import sigv4
from clary.control.objects.authentication import FORBIDDEN, FindSecret
from clary.control.objects.forms.form_authentication import authenticate_form
from clary.control.objects.forms.form_data import FORM_TYPE
from clary.control.objects.forms.post_policy import PostPolicy, read_policy
from clary.control.objects.s3_request import MAX_KEY_BYTES, S3Request, check_bucket, check_key
from clary.control.objects.store_client import encode_path
from clary.control.permissions.temporary_keys import TemporaryKeys

FILE_NAME = "${filename}"
MAX_REDIRECT_CHARACTERS = 2048
CREATED = 201

# Form field -> request header with the same meaning.
_HEADERS = {
    "acl": "x-amz-acl",
    **{
        name: name
        for name in (
            "cache-control",
            "content-disposition",
            "content-encoding",
            "content-language",
            "content-md5",
            "content-type",
            "expires",
            "x-amz-storage-class",
            "x-amz-website-redirect-location",
        )
    },
}
_HEADER_PREFIXES = ("x-amz-meta-", "x-amz-checksum-", "x-amz-server-side-encryption")
_SIGNING = frozenset({"x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-signature", sigv4.SECURITY_TOKEN})
_AS_SIGNED = _SIGNING | {"policy", "signature", "awsaccesskeyid"}  # `${filename}` is not replaced in these fields


@dataclass(frozen=True, kw_only=True)
class FormUpload:
    """An upload that the owner of a key permits."""

    access_key_id: str
    asked: S3Request
    headers: list[tuple[str, str]]
    policy: PostPolicy
    redirect: str  # empty without a redirect
    status: int  # status of a successful answer without redirect


def is_form(method: str, headers: Mapping[str, str], raw_query: str) -> bool:
    """Whether a request is the upload of a form, which has neither signed headers nor a signed URL.

    Args:
        method: upper case.
        headers: headers of the request, with case-insensitive names.
        raw_query: as on the wire; a request with any query is no form.
    """
    content_type = headers.get("Content-Type", "").lower()
    return method == "POST" and content_type.startswith(FORM_TYPE) and "Authorization" not in headers and not raw_query


def judge_form(
    fields: Mapping[str, str],
    *,
    bucket: str,
    file_name: str,
    find_secret: FindSecret,
    now: datetime,
    skew_s: float,
    region: str | None,
    temporary: TemporaryKeys | None = None,
) -> FormUpload:
    """Return the upload that a form requests.

    Args:
        fields: lower-case name -> value of the fields before the file.
        bucket: bucket of the request.
        file_name: name of the file, without folders.
        find_secret: takes an access key id; returns its secret access key, None for an unknown id.
        now: current time, with its zone.
        skew_s: largest difference between clocks.
        region: the only region that a signature may name; None accepts every region.
        temporary: verifies keys with a session token; None refuses them.
    Raises: WireError naming the problem of signature, policy, fields or object key.
    """
    check_bucket(bucket)
    access_key_id = authenticate_form(
        fields, find_secret=find_secret, now=now, skew_s=skew_s, region=region, temporary=temporary
    )
    policy = read_policy(fields["policy"])
    if "x-amz-signature" not in fields and policy.expires_at - now > timedelta(
        seconds=sigv4.PRESIGNED_MAX_EXPIRES_S + skew_s
    ):  # signature version 2 has no time of signing, so the expiration is limited to a week from now
        raise WireError(
            "AccessDenied",
            "Invalid according to Policy: its expiration lies more than a week ahead: sign it for a shorter time.",
            http_status=FORBIDDEN,
        )
    if len(file_name) > MAX_KEY_BYTES:  # the name replaces every placeholder in the form
        raise WireError("KeyTooLongError", f"The file's name is too long: {MAX_KEY_BYTES} characters at most.")
    filled = {
        name: value if name in _AS_SIGNED else value.replace(FILE_NAME, file_name) for name, value in fields.items()
    }
    if filled.get("bucket", bucket) != bucket:
        raise WireError("InvalidArgument", f"The form's field bucket names another bucket than {bucket!r}.")
    policy.check({**filled, "bucket": bucket}, now=now)
    key = filled["key"]
    if not key:
        raise WireError("InvalidArgument", "User key must have a length greater than 0.")
    check_key(key, is_read=False)
    if key.endswith("/"):
        raise WireError("InvalidArgument", f"Keys that end in '/' cannot hold content in this store: {key[:200]!r}.")
    redirect = filled.get("success_action_redirect") or filled.get("redirect", "")
    status = filled.get("success_action_status", "")
    return FormUpload(
        access_key_id=access_key_id,
        asked=S3Request(method="PUT", bucket=bucket, key=key, query=()),
        headers=_headers(filled),
        policy=policy,
        redirect=redirect if _is_address(redirect) else "",
        status=int(status) if status in ("200", "201") else 204,
    )


async def within_bounds(pieces: AsyncIterator[bytes], policy: PostPolicy) -> AsyncIterator[bytes]:
    """Yield the pieces of a file, the last piece only if the policy allows the size of the whole file.

    Raises: WireError EntityTooLarge or EntityTooSmall.
    """
    num_bytes = 0
    held = b""
    async for piece in pieces:
        num_bytes += len(piece)
        if num_bytes > policy.most_bytes:
            raise WireError(
                "EntityTooLarge",
                f"Your proposed upload exceeds the maximum allowed size: {policy.most_bytes} bytes.",
            )
        if held:
            yield held
        held = piece
    if num_bytes < policy.least_bytes:
        raise WireError(
            "EntityTooSmall",
            f"Your proposed upload is smaller than the minimum allowed size: {policy.least_bytes} bytes.",
        )
    if held:
        yield held


def redirect_address(upload: FormUpload, etag: str) -> str:
    """Return the address of the redirect."""
    told = urlencode({"bucket": upload.asked.bucket, "key": upload.asked.key, "etag": etag})
    parts = urlsplit(upload.redirect)
    return parts._replace(query=f"{parts.query}&{told}" if parts.query else told).geturl()


def object_address(asked: S3Request, *, scheme: str, host: str, is_bucket_in_host: bool) -> str:
    """Return the address of the object that a request makes, at the host name that the client used.

    Args:
        asked: the request, with bucket and key.
        scheme: http or https.
        host: Host header of the request, with its port.
        is_bucket_in_host: whether `host` names the bucket, which the path then leaves out.
    """
    path = encode_path(asked.bucket, asked.key)
    if is_bucket_in_host:
        path = path.removeprefix(f"/{asked.bucket}")
    return f"{scheme}://{host}{path}"


def created_document(upload: FormUpload, etag: str, address: str) -> bytes:
    """Return the XML document for success_action_status 201.

    Args:
        upload: the upload that was stored.
        etag: etag of the object, with its quotes.
        address: address of the object, from `object_address`.
    """
    fields = {"Location": address, "Bucket": upload.asked.bucket, "Key": upload.asked.key, "ETag": etag}
    lines = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in fields.items())
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<PostResponse>{lines}</PostResponse>'.encode()


def _headers(fields: Mapping[str, str]) -> list[tuple[str, str]]:
    headers: list[tuple[str, str]] = []
    for name, value in fields.items():
        header = _HEADERS.get(name) or (name if name.startswith(_HEADER_PREFIXES) else "")
        if header:
            if any(character < " " or character == "\x7f" for character in name + value):
                raise WireError("InvalidArgument", f"The form's field {name[:80]!r} holds control characters.")
            headers.append((header, value))
        elif name == "tagging" or (name.startswith("x-amz-") and name not in _SIGNING):
            raise WireError(
                "NotImplemented", f"The form's field {name[:80]!r} is not implemented: leave it out.", http_status=501
            )
    return headers


def _is_address(text: str) -> bool:
    """Whether a browser can be redirected to `text`; an unreadable address counts as absent, as on AWS."""
    if not text or len(text) > MAX_REDIRECT_CHARACTERS or not text.isprintable() or " " in text:
        return False
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.netloc)
