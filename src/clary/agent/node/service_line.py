"""The daemon's outgoing TLS connection to the service; only the pinned authority is trusted.

Where: `daemon` polls with it. An event on the box aborts a waiting request, so that the next request reports the event.
"""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clary.base.readiness import readable

MAX_ANSWER_BYTES = 4 * 1024 * 1024
REQUEST_TIMEOUT_S = 10.0  # in addition to the time for which the service may delay an answer


class Refused(Exception):
    """An answer other than 200; `status` is its code."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(f"{status}: {words}")
        self.status = status


class Interrupted(Exception):
    """An event on this box has interrupted the wait for an answer."""


class ServiceLine:
    """Requests to the service.

    Args:
        url: https://HOST:PORT.
        authority: file of the certificate that signed the service's certificate.
        token: of the box.
    Raises: ValueError for any other form of URL; OSError for a file without a certificate.
    """

    def __init__(self, url: str, authority: Path, token: str) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "https" or not parts.hostname:
            raise ValueError(f"expected https://HOST:PORT, got {url!r}")
        self._host, self._port = parts.hostname, parts.port or 443
        self._token = token
        self._context = ssl.create_default_context(cafile=str(authority))
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._kept: http.client.HTTPSConnection | None = None

    @property
    def is_open(self) -> bool:
        """Whether the next request can use an open connection."""
        return self._kept is not None and self._kept.sock is not None and not _is_readable(self._kept.sock)

    def ask(
        self, method: str, path: str, document: Any = None, *, wait_s: float = 0.0, watched: Sequence[int] = ()
    ) -> bytes:
        """Send one request; return the body of a 200.

        Args:
            method: GET or POST.
            path: below the service's URL.
            document: sent as JSON; None: no body.
            wait_s: time for which the service may delay the answer.
            watched: descriptors; the wait ends when one becomes readable.
        Raises: Refused; Interrupted; OSError and http.client.HTTPException for a missing or incomplete answer.
        """
        body = None if document is None else json.dumps(document).encode()
        headers = {"Authorization": f"Bearer {self._token}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            connection = self._connection()
            connection.request(method, path, body, headers)
            self._wait(connection, wait_s + REQUEST_TIMEOUT_S, watched)
            answer = connection.getresponse()
            data = answer.read(MAX_ANSWER_BYTES + 1)
            if len(data) > MAX_ANSWER_BYTES:
                raise OSError(f"the answer to {method} {path} has more than {MAX_ANSWER_BYTES} bytes")
            if answer.length:  # http.client detects a short body only in a read() without a size
                raise OSError(f"the answer to {method} {path} ended {answer.length} bytes early")
        except BaseException:
            self.close()
            raise
        if answer.status != http.client.OK:
            raise Refused(answer.status, _words(data))
        return data

    def close(self) -> None:
        """Close the connection."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _connection(self) -> http.client.HTTPSConnection:
        if self._kept is None or self._kept.sock is None or _is_readable(self._kept.sock):
            self.close()  # the service has closed a socket that is readable before a request was sent
            self._kept = http.client.HTTPSConnection(
                self._host, self._port, timeout=REQUEST_TIMEOUT_S, context=self._context
            )
        return self._kept

    def _wait(self, connection: http.client.HTTPSConnection, limit_s: float, watched: Sequence[int]) -> None:
        """Wait for the answer's first byte. Raises: Interrupted for an event on the box."""
        found: list[Any] = readable([connection.sock, *watched], limit_s)
        if connection.sock in found:
            return
        if found:
            raise Interrupted
        raise TimeoutError(f"no answer within {limit_s:.0f} s")


def _is_readable(sock: Any) -> bool:
    return bool(readable([sock], 0))


def _words(data: bytes) -> str:
    try:
        return str(json.loads(data)["message"])[:300]
    except (ValueError, KeyError, TypeError, RecursionError):
        return data[:200].decode(errors="replace")
