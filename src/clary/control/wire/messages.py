"""HTTP requests and responses of the wire: bytes and strings, without a server library.

Where: `control.server` makes these requests from the HTTP library's requests, and passes the responses to that library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class HttpRequest:
    """One request with its whole body.

    Args:
        method: upper case.
        raw_path: path as on the wire, percent-encoded, without the query.
        query: query as on the wire, without `?`.
        headers: in the order of arrival; a name may occur several times.
        body: empty for a request of which only the head has arrived.
        remote: address of the client, for logs and for limits of each client.
        is_secure: whether it was received over TLS.
    """

    method: str
    raw_path: str
    query: str
    headers: Sequence[tuple[str, str]]
    body: bytes = b""
    remote: str = ""
    is_secure: bool = False

    def header(self, name: str) -> str | None:
        """Return the value of a header, case-insensitively; several headers of one name are joined with commas."""
        return self.lowered_headers.get(name.lower())

    @cached_property
    def lowered_headers(self) -> dict[str, str]:
        """Headers by lower-case name; repeated headers are joined with commas (RFC 9110 section 5.3)."""
        found: dict[str, str] = {}
        for name, value in self.headers:
            lowered = name.lower()
            found[lowered] = f"{found[lowered]},{value}" if lowered in found else value
        return found


@dataclass(frozen=True)
class HttpResponse:
    """One response with its whole body."""

    status: int
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""

    def header(self, name: str) -> str | None:
        """Return the first header of a name, case-insensitively."""
        lowered = name.lower()
        return next((value for key, value in self.headers if key.lower() == lowered), None)
