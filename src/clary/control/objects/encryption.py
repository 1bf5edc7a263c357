"""Headers of S3's server-side encryption, in front of a store that has no keys.

Where: `front` uses it for each request to the embedded store. Pure. S3 encrypts every object, by AES256 unless the
request or the bucket names another algorithm, and reports the encryption in its answers. Clients send `aws:kms` with
every upload, and some compare the answer. Clary stores the requested encryption as metadata of the object and returns
it, but encrypts nothing: the disk may be encrypted instead (docs/s3.md). A request that brings its own encryption key
(SSE-C) is refused.
Source: Amazon S3 API reference, PutObject, CopyObject, HeadObject, GetBucketEncryption.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from clary.base.errors import WireError
from clary.control.objects.s3_request import S3Request

PREFIX = "x-amz-server-side-encryption"
KEY_ID = f"{PREFIX}-aws-kms-key-id"
BUCKET_KEY = f"{PREFIX}-bucket-key-enabled"
CONTEXT = f"{PREFIX}-context"
MARK = "x-amz-meta-clary-encryption"  # metadata of the object, which no client sees
DEFAULT = "AES256"
ALGORITHMS = (DEFAULT, "aws:kms", "aws:kms:dsse")
NOT_CONFIGURED = b"ServerSideEncryptionConfigurationNotFoundError"
# AWS's answer for a bucket without a configuration.
DEFAULT_CONFIGURATION = (
    '<?xml version="1.0" encoding="UTF-8"?>\n'
    '<ServerSideEncryptionConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Rule>'
    f"<ApplyServerSideEncryptionByDefault><SSEAlgorithm>{DEFAULT}</SSEAlgorithm></ApplyServerSideEncryptionByDefault>"
    "<BucketKeyEnabled>false</BucketKeyEnabled></Rule></ServerSideEncryptionConfiguration>"
).encode()

_CUSTOMER_KEY = re.compile(r"x-amz-(copy-source-)?server-side-encryption-customer-.*")
_KEY_NAME = re.compile(r"[A-Za-z0-9:/_.-]{1,256}")  # a key's id, alias or ARN
_ALGORITHM = re.compile(rb"<(?:\w+:)?SSEAlgorithm>([^<]*)</")
_LOOKS = frozenset({"x-id", "partnumber", "versionid"})  # parameters of reads of the object itself
_WRITES = frozenset({"x-id"})


@dataclass(frozen=True)
class Encryption:
    """The server-side encryption that a request wants for an object."""

    algorithm: str = DEFAULT
    key_id: str = ""
    has_bucket_key: bool = False

    @property
    def mark(self) -> str:
        """The text that is stored as metadata of the object; empty for the default."""
        return "" if self == Encryption() else f"{self.algorithm} {self.key_id} {int(self.has_bucket_key)}"

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The headers that name this encryption."""
        told = [(PREFIX, self.algorithm)]
        if self.key_id:
            told.append((KEY_ID, self.key_id))
        if self.has_bucket_key:
            told.append((BUCKET_KEY, "true"))
        return told

    @classmethod
    def of_mark(cls, mark: str) -> Encryption:
        """Parse a stored mark; a malformed mark counts as the default."""
        parts = mark.split(" ")
        if len(parts) != 3 or parts[0] not in ALGORITHMS or not (parts[1] == "" or _KEY_NAME.fullmatch(parts[1])):
            return cls()
        return cls(parts[0], parts[1], parts[2] == "1")


def asked_encryption(headers: Iterable[tuple[str, str]]) -> Encryption | None:
    """Return the encryption that a request names, or None without such headers.

    Args:
        headers: lower-case names.
    Raises: WireError InvalidArgument for an encryption unknown to S3, NotImplemented for customer-provided keys.
    """
    told: dict[str, str] = {}
    for name, value in headers:
        if _CUSTOMER_KEY.fullmatch(name):
            raise WireError(
                "NotImplemented",
                "Encryption with keys of the customer (SSE-C) is not implemented: send the object without "
                "x-amz-server-side-encryption-customer-* headers.",
                http_status=501,
            )
        if name == MARK:
            raise WireError("InvalidArgument", f"The metadata {MARK} is the service's own: choose another name.")
        if name.startswith(PREFIX):
            told[name] = value
    algorithm = told.get(PREFIX)
    if algorithm is None:
        if told:
            raise WireError("InvalidArgument", f"{sorted(told)[0]} also needs the header {PREFIX}: aws:kms.")
        return None
    if algorithm not in ALGORITHMS:
        raise WireError(
            "InvalidArgument",
            f"The encryption method specified is not supported: {algorithm[:40]!r} is none of {', '.join(ALGORITHMS)}.",
        )
    key_id = told.get(KEY_ID, "")
    if key_id and (algorithm == DEFAULT or not _KEY_NAME.fullmatch(key_id)):
        raise WireError(
            "InvalidArgument", f"{KEY_ID} must name a key of KMS and be sent with aws:kms: {key_id[:80]!r}."
        )
    return Encryption(algorithm, key_id, told.get(BUCKET_KEY, "").lower() == "true")


def is_of_bucket(asked: S3Request) -> bool:
    """Whether a request is for the encryption of a bucket."""
    return bool(asked.bucket) and not asked.key and asked.has("encryption")


def keeps_encryption(asked: S3Request) -> bool:
    """Whether a request makes an object, or begins a multipart upload."""
    names = _parameters(asked)
    return bool(asked.key) and (
        (asked.method == "PUT" and names <= _WRITES) or (asked.method == "POST" and names == {"uploads"})
    )


def tells_encryption(asked: S3Request) -> bool:
    """Whether the answer to a request names an object's encryption."""
    is_read = bool(asked.key) and asked.method in ("GET", "HEAD") and _parameters(asked) <= _LOOKS
    return is_read or keeps_encryption(asked)


def told_headers(asked: S3Request, wanted: Encryption | None, answer: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the encryption headers of a successful answer.

    Args:
        asked: the client's request.
        wanted: encryption that the request names.
        answer: headers of the store's answer.
    """
    if not tells_encryption(asked):
        return []
    if keeps_encryption(asked):
        return (wanted or Encryption()).headers
    return kept_headers(answer)


def kept_headers(stored: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the headers of an object's encryption, from the metadata that the store keeps with it."""
    mark = next((value for name, value in stored.items() if name.lower() == MARK), "")
    return Encryption.of_mark(mark).headers


def check_bucket_configuration(content: bytes) -> None:
    """Check that a bucket's encryption is AWS's default, and refuse every other encryption.

    Raises: WireError NotImplemented or MalformedXML.
    """
    algorithms = [found.strip() for found in _ALGORITHM.findall(content)]
    if len(algorithms) != 1:
        raise WireError(
            "MalformedXML",
            "The XML you provided was not well-formed or did not validate: one SSEAlgorithm is expected.",
        )
    if algorithms[0] != DEFAULT.encode():
        raise WireError(
            "NotImplemented",
            f"A bucket cannot have another encryption than {DEFAULT}: there is no KMS here. Encrypt the "
            "disk of the state folder, or name aws:kms with each object: answers about the object then "
            "name it.",
            http_status=501,
        )


def _parameters(asked: S3Request) -> set[str]:
    """Return the query parameters that select the operation, in lower case."""
    lowered = {name.lower() for name, _ in asked.query}
    return {name for name in lowered if not name.startswith(("response-", "x-amz-"))}
