"""The permissions of the caller of one S3 request.

Where: `front` creates a `Permit` for each parsed request; for the owner's key its methods permit everything.
The rules are `permissions.s3_rules`.
"""

from __future__ import annotations

import re
from html import unescape
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote_plus

from clary.base.errors import WireError
from clary.control.objects import s3_request
from clary.control.objects.s3_request import S3Request
from clary.control.permissions import s3_rules
from clary.control.permissions.grants import Grants, S3Asked

if TYPE_CHECKING:
    from aiohttp import web

FORBIDDEN = 403
COPY_SOURCE = "x-amz-copy-source"
# Values in XML contain no `<`, so these patterns can not match too much.
_LISTED = re.compile(rb"<(Contents|CommonPrefixes)>.*?</\1>", re.DOTALL)
_NAME = re.compile(rb"<(?:Key|Prefix)>(.*?)</(?:Key|Prefix)>", re.DOTALL)
_URL_ENCODED = b"<EncodingType>url</EncodingType>"
_KEY_COUNT = re.compile(rb"<KeyCount>\d+</KeyCount>")


class Permit:
    """The decision on one request.

    Args:
        grants: grants of the caller's key; None permits every request.
        request: the client's, for its headers.
        asked: the parsed request.
    Raises: WireError(AccessDenied) for a request that the caller may not make.
    """

    def __init__(self, grants: Grants | None, request: web.BaseRequest, asked: S3Request) -> None:
        self._grants = grants
        self._bucket = asked.bucket
        self.is_filtered = False
        if grants is None:
            return
        headers = request.headers.getall(COPY_SOURCE, [])
        moved = [value for name, value in asked.query if name.lower() == COPY_SOURCE]
        self._asked = S3Asked(
            method=asked.method,
            bucket=asked.bucket,
            key=asked.key,
            query=asked.query,
            copy_sources=tuple(s3_request.check_copy_source(value) for value in (*headers, *moved)),
        )
        self._decide(self._asked)

    def check_deleted(self, keys: list[str]) -> None:
        """Raise WireError(AccessDenied) for a key that the caller may not remove."""
        if self._grants is not None:
            asked = S3Asked(
                method="POST",
                bucket=self._bucket,
                key="",
                query=self._asked.query,
                deleted_keys=tuple(keys),
            )
            self._decide(asked)

    def with_clear_source(self, headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return headers with an unambiguous copy source: the copy source that was checked."""
        if self._grants is None:
            return headers
        return [(name, _clear(value) if name == COPY_SOURCE else value) for name, value in headers]

    def filter_listing(self, content: bytes) -> bytes:
        """Return a listing without the keys and folders that the caller may not see."""
        grants = self._grants
        if grants is None:
            return content
        is_encoded = _URL_ENCODED in content
        num_kept = 0

        def keep(found: re.Match[bytes]) -> bytes:
            nonlocal num_kept
            named = _NAME.search(found[0])
            text = "" if named is None else unescape(named[1].decode("utf-8", "replace"))
            if not grants.may_read(self._bucket, unquote_plus(text) if is_encoded else text):
                return b""
            num_kept += 1
            return found[0]

        kept = _LISTED.sub(keep, content)
        return _KEY_COUNT.sub(b"<KeyCount>%d</KeyCount>" % num_kept, kept, count=1)

    def _decide(self, asked: S3Asked) -> None:
        assert self._grants is not None, "the owner needs no decision"
        decision = s3_rules.decide(self._grants, asked)
        if not decision.is_allowed:
            raise WireError("AccessDenied", f"Access Denied: {decision.reason}", http_status=FORBIDDEN)
        self.is_filtered = decision.is_filtered


def _clear(value: str) -> str:
    bucket, key = s3_request.check_copy_source(value)
    _, mark, version = value.partition("?")
    return f"/{bucket}/{quote(key)}{mark}{version}"
