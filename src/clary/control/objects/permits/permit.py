"""The permissions of the caller of one S3 request.

Where: `front` creates a `Permit` for each parsed request; for the owner's key its methods permit everything.
The rules are `permissions.s3_rules`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from html import escape, unescape
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote_plus

from clary.base.errors import WireError
from clary.control.objects import listed_entries, s3_request
from clary.control.objects.permits.hidden_markers import HiddenMarkers
from clary.control.objects.s3_request import S3Request
from clary.control.permissions import s3_rules
from clary.control.permissions.grants import Grants, S3Asked

if TYPE_CHECKING:
    from aiohttp import web

FORBIDDEN = 403
COPY_SOURCE = "x-amz-copy-source"
# Values in XML contain no `<`, so these patterns cannot match too much.
_CONTINUED = re.compile(rb"<(NextMarker|NextContinuationToken)>(.*?)</\1>", re.DOTALL)
# The store repeats these parameters of the request in its answer.
_REPEATED = {"Marker": "marker", "StartAfter": "start-after", "ContinuationToken": "continuation-token"}


class Permit:
    """The decision on one request.

    Args:
        grants: grants of the caller's key; None permits every request.
        request: the client's, for its headers.
        asked: the parsed request.
        hidden: encrypts where a filtered listing goes on.
    Raises: WireError(AccessDenied) for a request that the caller may not make.
    """

    def __init__(
        self, grants: Grants | None, request: web.BaseRequest, asked: S3Request, *, hidden: HiddenMarkers
    ) -> None:
        self._grants = grants
        self._hidden = hidden
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
        return [(name, _clear(value) if name == COPY_SOURCE else value) for name, value in headers]

    def with_clear_markers(self, asked: S3Request) -> S3Request:
        """Return the request with the key from which a filtered listing shall go on.

        The existence of keys that the caller may not see must not show in an answer, so only a key that it may read, or
        a marker of an earlier answer, is accepted.

        Raises: WireError(AccessDenied) for another marker.
        """
        if not self.is_filtered:
            return asked
        return replace(asked, query=tuple((name, self._clear_marker(name, value)) for name, value in asked.query))

    def filter_listing(self, content: bytes) -> bytes:
        """Return a listing without the keys and folders that the caller may not see; where it goes on is encrypted."""
        grants = self._grants
        if grants is None:
            return content
        is_encoded = listed_entries.is_encoded(content)
        kept = listed_entries.keep_entries(content, lambda key: grants.may_read(self._bucket, key))

        def hide(found: re.Match[bytes]) -> bytes:
            text = unescape(found[2].decode("utf-8", "replace"))
            if is_encoded and found[1] == b"NextMarker":
                text = unquote_plus(text)
            return _element(found[1].decode(), self._hidden.hide(self._bucket, self._prefix(), text))

        kept = _CONTINUED.sub(hide, kept)
        for name, parameter in _REPEATED.items():
            given = next(iter(self._asked.values(parameter)), "")
            told = _element(name, quote(given) if is_encoded and name != "ContinuationToken" else given)
            before, begin, rest = kept.partition(f"<{name}>".encode())
            _, end, after = rest.partition(f"</{name}>".encode())
            if begin and end:
                kept = before + told + after
        return kept

    def _prefix(self) -> str:
        return next(iter(self._asked.values("prefix")), "")

    def _clear_marker(self, name: str, value: str) -> str:
        if name not in _REPEATED.values() or not value:
            return value
        assert self._grants is not None, "only a job's listings are filtered"
        if (revealed := self._hidden.reveal(self._bucket, self._prefix(), value)) is not None:
            return revealed
        if name != "continuation-token" and self._grants.may_read(self._bucket, value):
            return value
        raise WireError(
            "AccessDenied",
            f"Access Denied: {name} of a listing with prefix {self._prefix()[:200]!r} must be a key that the job may "
            f"read, or come from an earlier answer. List prefix {self._prefix()[:200] + '/'!r} to use any key.",
            http_status=FORBIDDEN,
        )

    def _decide(self, asked: S3Asked) -> None:
        assert self._grants is not None, "the owner needs no decision"
        decision = s3_rules.decide(self._grants, asked)
        if not decision.is_allowed:
            raise WireError("AccessDenied", f"Access Denied: {decision.reason}", http_status=FORBIDDEN)
        self.is_filtered = decision.is_filtered


def _element(name: str, text: str) -> bytes:
    return f"<{name}>{escape(text, quote=False)}</{name}>".encode()


def _clear(value: str) -> str:
    bucket, key = s3_request.check_copy_source(value)
    _, mark, version = value.partition("?")
    return f"/{bucket}/{quote(key)}{mark}{version}"
