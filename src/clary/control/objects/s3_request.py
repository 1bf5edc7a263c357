r"""Parser of bucket, key and parameters of an S3 request, which refuses keys that the store cannot hold.

Where: first step of `front`. Pure.

[Note: keys that the store cannot hold] SeaweedFS keeps objects as files of folders: it takes a part `.` or `..` for a
folder, hides keys below `.uploads` and `*.versions` from listings, and drops the content of an object called `a/`. Such
keys are refused wherever they occur: in the path, in a copy source, in DeleteObjects. A key such as `a/` is refused
only for a multipart upload or an object with content. Keys with the mark of `stored_names` are refused too, because
`stored_names` uses it to store keys with an empty part or a backslash under other names. Ids of uploads and of versions
become names of files in the store, so ids that are paths are refused, too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from clary.base.errors import WireError
from clary.contract.object_store.stored_names import MARK, stored_name
from clary.control.objects.store_client import encode_path

MAX_KEY_BYTES = 1024  # S3 API reference, "Creating object key names"
MAX_SEGMENT_BYTES = 255  # SeaweedFS: longest file name
MAX_STORED_BYTES = 2048  # of a stored name, so that a page of a listing has a known size
MAX_PAGE = 1000  # S3 API reference, ListObjectsV2, ListMultipartUploads

_BUCKET_NAME = re.compile(r"(?!.*\.\.)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_IP_ADDRESS = re.compile(r"(?:\d{1,3}\.){3}\d{1,3}")
_PAGE_SIZES = frozenset({"max-keys", "max-uploads"})
_MAX_DIGITS = 10  # S3 refuses larger numbers
_UPLOAD_IDS = frozenset({"uploadid", "upload-id-marker"})
_VERSION_IDS = frozenset({"versionid", "version-id-marker"})
_PARTS_OF_PATHS = frozenset("/\\\0")
_READING_METHODS = frozenset({"GET", "HEAD"})


_REGION = r"[a-z]{2}(?:-[a-z]+)+-\d{1,2}"
_BUCKET_HOST = re.compile(
    rf"([a-z0-9][a-z0-9.-]*)\.s3(?:-accelerate|-external-1)?(?:\.dualstack)?(?:[.-]{_REGION})?\.amazonaws\.com"
)


@dataclass(frozen=True, kw_only=True)
class S3Request:
    """An S3 request without its headers and body."""

    method: str
    bucket: str  # empty for requests to the service (ListBuckets)
    key: str  # empty for requests to a bucket
    query: tuple[tuple[str, str], ...]  # decoded, in the client's order, without authentication and checksums
    headers_of_url: tuple[tuple[str, str], ...] = ()  # type and digest of the body, named by a URL of version 2

    @property
    def path(self) -> str:
        """The path, percent-encoded as S3 signs it."""
        return encode_path(self.bucket, self.key) if self.bucket else "/"

    @property
    def resource(self) -> str:
        """The readable path, as in the Resource of an error."""
        return f"/{self.bucket}/{self.key}" if self.key else f"/{self.bucket}"

    def has(self, name: str) -> bool:
        """Whether the query names the parameter, with or without a value."""
        return any(name == parameter for parameter, _ in self.query)

    @property
    def has_unstorable_prefix(self) -> bool:
        """Whether the request lists keys with a prefix that no key of the store has."""
        is_of_bucket = bool(self.bucket) and not self.key
        return is_of_bucket and any(name == "prefix" and _is_unstorable_prefix(value) for name, value in self.query)

    @property
    def is_delete_objects(self) -> bool:
        """Whether the body lists keys to delete."""
        return self.method == "POST" and not self.key and self.has("delete")


def split_target(raw_target: str) -> tuple[str, str]:
    """Return raw path and raw query of a request target in origin or absolute form.

    Raises: WireError InvalidURI for an absolute form that is not a URL.
    """
    if not raw_target.startswith("/"):
        try:
            parts = urlsplit(raw_target)
        except ValueError as error:
            raise WireError("InvalidURI", f"Couldn't parse the specified URI: {error}.") from error
        return parts.path or "/", parts.query
    path, _, query = raw_target.partition("?")
    return path, query


def bucket_of_host(host: str) -> str | None:
    """Return the bucket named by a Host such as bucket.s3.us-west-2.amazonaws.com, else None."""
    found = _BUCKET_HOST.fullmatch(host.partition(":")[0].lower())
    return found[1] if found else None


def parse_request(method: str, raw_path: str, raw_query: str) -> S3Request:
    """Parse a path-style S3 request; authentication parameters of the query and checksums of the body are omitted.

    Args:
        method: upper case; GET and HEAD of a key that the store cannot hold raise NoSuchKey, other methods
            InvalidArgument.
        raw_path: percent-encoded, /bucket/key.
        raw_query: as on the wire, without `?`.
    Raises: WireError InvalidBucketName, InvalidArgument, InvalidURI, KeyTooLongError or NoSuchKey.
    """
    bucket, _, raw_key = raw_path.removeprefix("/").partition("/")
    bucket = unquote(bucket)
    key = _decode_key(raw_key)
    if bucket:
        check_bucket(bucket)
    elif key:
        raise WireError("InvalidURI", "Couldn't parse the specified URI: the bucket's name is empty.")
    query = _parse_query(raw_query)
    headers_of_url: tuple[tuple[str, str], ...] = ()
    if {unquote(part.partition("=")[0]) for part in raw_query.split("&")} >= _VERSION_2:
        headers_of_url = tuple((name.lower(), value) for name, value in query if name.lower() in _HEADERS_OF_URLS)
        query = tuple(pair for pair in query if pair[0].lower() not in _HEADERS_OF_URLS)
    _check_ids(query)
    request = S3Request(method=method, bucket=bucket, key=key, query=query, headers_of_url=headers_of_url)
    if key:
        check_key(key, is_read=method in _READING_METHODS)
        if key.endswith("/") and (request.has("uploads") or request.has("uploadId")):
            raise _refused_key(key, "keys that end in '/' cannot hold content in this store")
    elif method != "GET" and request.has_unstorable_prefix:
        raise WireError("InvalidArgument", "No key of this store has a null byte or the character U+10FFFD.")
    return request


def check_bucket(bucket: str) -> None:
    """Check a bucket's name by S3's rules.

    Raises: WireError InvalidBucketName.
    """
    if _BUCKET_NAME.fullmatch(bucket) is None or _IP_ADDRESS.fullmatch(bucket) is not None:
        raise WireError(
            "InvalidBucketName",
            f"The specified bucket is not valid: {bucket[:80]!r} must be 3 to 63 lower-case letters, digits, dots and "
            "hyphens, begin and end with a letter or digit, and not look like an IP address.",
        )


def check_key(key: str, *, is_read: bool) -> None:
    """Check that the store can hold an object of exactly this key.

    Args:
        is_read: whether the request only reads; then a key that cannot be stored counts as a missing object.
    Raises: WireError KeyTooLongError, InvalidArgument, or NoSuchKey for reads.
    """
    if len(key.encode("utf-8")) > MAX_KEY_BYTES:
        raise WireError("KeyTooLongError", f"Your key is too long: {len(key.encode())} bytes, limit {MAX_KEY_BYTES}.")
    reason = _why_not_storable(key)
    if reason is None:
        return
    if is_read:
        raise WireError("NoSuchKey", f"The specified key does not exist: {reason}.", http_status=404)
    raise _refused_key(key, reason)


def check_copy_source(value: str) -> tuple[str, str]:
    """Return bucket and key of the object that x-amz-copy-source names.

    Raises: WireError InvalidArgument, InvalidBucketName, InvalidURI, KeyTooLongError or NoSuchKey.
    """
    path, _, raw_query = value.partition("?")
    bucket, _, key = _decode_key(path).removeprefix("/").partition("/")
    _check_ids(_parse_query(raw_query))
    if not key:
        raise WireError("InvalidArgument", "Copy Source must mention the source bucket and key: sourcebucket/sourcekey")
    check_bucket(bucket)
    check_key(key, is_read=True)
    return bucket, key


def check_version(version: str) -> None:
    """Check the id of a version; an empty text passes.

    Raises: WireError InvalidArgument for an id that is a path, with which the store would open the file of another id.
    """
    if _is_path(version):
        raise WireError("InvalidArgument", f"Invalid version id specified: {version[:80]!r}.")


def _decode_key(raw_key: str) -> str:
    try:
        return unquote_to_bytes(raw_key.encode("utf-8", "surrogateescape")).decode("utf-8")
    except UnicodeDecodeError as error:
        raise WireError("InvalidURI", "Couldn't parse the specified URI: the key is not UTF-8.") from error


def _parse_query(raw_query: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    for part in raw_query.split("&"):
        if not part:
            continue
        name, _, value = part.partition("=")
        try:
            pair = (unquote(name, errors="strict"), unquote(value, errors="strict"))
            "".join(pair).encode("utf-8")
        except UnicodeError as error:
            raise WireError("InvalidURI", "Couldn't parse the specified URI: the query is not UTF-8.") from error
        if not _is_authentication(pair[0]) and _CHECKSUM_OF_URL.fullmatch(pair[0]) is None:
            pairs.append((pair[0], _capped(*pair)))
    return tuple(pairs)


def _check_ids(query: Sequence[tuple[str, str]]) -> None:
    """Refuse ids of uploads and versions that are paths, with which the store would open the file of another id."""
    for name, value in query:
        if name.lower() in _VERSION_IDS:
            check_version(value)
        elif name.lower() in _UPLOAD_IDS and _is_path(value):
            raise WireError(
                "NoSuchUpload",
                "The specified upload does not exist. The upload ID may be invalid, or the upload may have been "
                "aborted or completed.",
                http_status=404,
            )


def _is_path(identifier: str) -> bool:
    return identifier in (".", "..") or bool(set(identifier) & _PARTS_OF_PATHS)


def _capped(name: str, value: str) -> str:
    """Return the value of a parameter; a page has at most MAX_PAGE entries, as in S3."""
    is_number = name in _PAGE_SIZES and value.isascii() and value.isdigit() and len(value) <= _MAX_DIGITS
    return str(min(int(value), MAX_PAGE)) if is_number else value


_VERSION_2 = frozenset({"AWSAccessKeyId", "Signature"})  # parameters that show that a URL is signed by version 2
_HEADERS_OF_URLS = frozenset({"content-type", "content-md5"})  # headers that version 2 signs and moves into the URL
# Checksums of the body, which S3 ignores in a URL: the AWS SDK for JavaScript presigns an upload before it has a body,
# with the checksum of an empty one (aws/aws-sdk issue 480, aws/aws-sdk-go-v2 issue 2610). x-amz-checksum-mode,
# -type and -algorithm say how to treat checksums, and stay.
_CHECKSUM_OF_URL = re.compile(r"x-amz-(?:sdk-checksum-algorithm|checksum-(?!mode$|type$|algorithm$).+)", re.IGNORECASE)
_AUTHENTICATION_PARAMETERS = frozenset(
    {
        "x-amz-algorithm",
        "x-amz-credential",
        "x-amz-date",
        "x-amz-expires",
        "x-amz-signedheaders",
        "x-amz-signature",
        "x-amz-security-token",
        "x-amz-content-sha256",
        # Version 2, which boto3 uses for presigned URLs by default.
        "awsaccesskeyid",
        "signature",
        "expires",
    }
)


def _is_authentication(name: str) -> bool:
    return name.lower() in _AUTHENTICATION_PARAMETERS


def _why_not_storable(key: str) -> str | None:
    if "\0" in key:
        return "keys with null bytes cannot be stored"
    if MARK in key:
        return "keys with the character U+10FFFD cannot be stored"
    stored = stored_name(key)
    if len(stored.encode()) > MAX_STORED_BYTES:
        return "keys with so many empty parts ('//') or backslashes cannot be stored"
    segments = stored.split("/")
    folders = segments[:-1]
    if "." in segments or ".." in segments:
        return "keys with a part '.' or '..' cannot be stored"
    if ".uploads" in segments or ".versions" in segments or _has_version_folder(folders):
        return "keys with a part '.uploads' or '*.versions' are the store's own"
    if any(len(segment) * 4 > MAX_SEGMENT_BYTES and len(segment.encode()) > MAX_SEGMENT_BYTES for segment in segments):
        return f"keys with a part longer than {MAX_SEGMENT_BYTES} bytes between '/' cannot be stored"
    return None


def _has_version_folder(folders: Sequence[str]) -> bool:
    return any(folder.endswith(".versions") for folder in folders)


def _is_unstorable_prefix(prefix: str) -> bool:
    return MARK in prefix or "\0" in prefix


def _refused_key(key: str, reason: str) -> WireError:
    return WireError("InvalidArgument", f"{reason[0].upper()}{reason[1:]}: {key[:200]!r}. Choose another key.")
