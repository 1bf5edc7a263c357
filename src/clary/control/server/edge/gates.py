"""Decision of a gate on a request's head, before any of its body is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from clary.control.wire.messages import HttpRequest, HttpResponse

STRANGER_BODY_BYTES = 8 * 1024  # largest body of a request whose head names no known client


@dataclass(frozen=True, kw_only=True)
class Admission:
    """The decision to read the body."""

    client: str  # client whose share of the body budget the body uses
    max_body_bytes: int
    is_known: bool  # whether the head names a known client; otherwise the connection may be evicted


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """The decision to send an answer without reading the body."""

    answer: HttpResponse
    delay_s: float = 0.0  # seconds before the answer is sent


Gate = Callable[[HttpRequest], Admission | Refusal]  # called with a request without its body


def admit_strangers(head: HttpRequest) -> Admission:
    """Admit every client, with a small body; for pages that every client may read."""
    return Admission(client=f"a reader at {head.remote}", max_body_bytes=STRANGER_BODY_BYTES, is_known=False)
