"""Parses `s3://bucket/key` into bucket and key."""

from __future__ import annotations

from dataclasses import dataclass

from clary.base.errors import AgentError, Fault
from clary.contract.settings.named_places import S3_SCHEME, bucket_problem


@dataclass(frozen=True)
class S3Uri:
    """An object or a prefix; `str()` returns its URI."""

    bucket: str
    key: str  # empty for the whole bucket

    def __str__(self) -> str:
        return f"{S3_SCHEME}{self.bucket}/{self.key}" if self.key else f"{S3_SCHEME}{self.bucket}"

    def child(self, name: str) -> S3Uri:
        """Return the URI of `name` below this one, with one slash between."""
        return S3Uri(self.bucket, f"{self.key.rstrip('/')}/{name}" if self.key else name)


def parse_s3_uri(uri: str) -> S3Uri:
    """Parse `s3://bucket`, `s3://bucket/` or `s3://bucket/key`; the key stays unchanged, byte for byte.

    Raises: AgentError (fault USER) for any other text.
    """
    if uri.startswith(("https://", "http://")):
        raise _no_uri(uri, "https forms of S3 URIs are not supported, because they do not say where the bucket ends")
    if not uri.startswith(S3_SCHEME):
        raise _no_uri(uri, "it does not start with s3://")
    bucket, _, key = uri.removeprefix(S3_SCHEME).partition("/")
    problem = bucket_problem(bucket)
    if problem is not None:
        raise _no_uri(uri, problem)
    return S3Uri(bucket, key)


def _no_uri(uri: str, reason: str) -> AgentError:
    return AgentError(
        f"{uri[:200]!r} is not an S3 URI that can be used: {reason}. Write it as s3://bucket/key.", fault=Fault.USER
    )
