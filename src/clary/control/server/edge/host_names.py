"""Host names under which the service answers, so that no page of another site reaches it under that site's name.

Where: `listener` checks each request. The owner of `evil.example` may let that name resolve to 127.0.0.1; then requests
of its pages count as same-origin, and only the Host header reveals them (DNS rebinding). Requests for numeric addresses
are always answered, because no name was resolved. Pure.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable

LOCAL_NAME = "localhost"  # also names that end in it; RFC 6761 section 6.3: the network never resolves these


class HostNames:
    """Knows the names of one service.

    Args:
        own: names of the service itself, in upper or lower case; clients may put a bucket in front of each.
        others: names of AWS that resolve to the service.

    A leading `*.` of a name stands for one or several labels.
    """

    def __init__(self, own: Iterable[str], others: Iterable[str] = ()) -> None:
        lowered = {name.strip().rstrip(".").lower() for name in own} - {""}
        foreign = {name.lower() for name in others}
        patterns = {name for name in lowered | foreign if name.startswith("*.")}
        self._own = frozenset(lowered - patterns) | {LOCAL_NAME}
        self._exact = self._own | (foreign - patterns)
        self._suffixes = tuple(sorted(name[1:] for name in patterns))

    def why_refused(self, host: str | None) -> str | None:
        """Return why a request with this Host header is refused, or None if it is answered.

        A request without the header is answered, because every browser sends the header.
        """
        if host is None:
            return None
        name = _name_of(host)
        if _is_number(name) or name in self._exact or name.endswith(self._suffixes):
            return None
        # The client puts the bucket in front of the service's name.
        if self.bucket_of(host) is not None:
            return None
        shown = name[:80].encode("ascii", "backslashreplace").decode()
        return (
            f"this service does not answer for the name {shown!r}: use its address or localhost, or add the name to "
            "setting host_names"
        )

    def bucket_of(self, host: str) -> str | None:
        """Return the text in front of one of the service's own names, as in `bucket.localhost:4570`; else None."""
        name = _name_of(host)
        if name in self._exact or _is_number(name):
            return None
        found = [own for own in self._own if name.endswith(f".{own}")]
        return name.removesuffix(f".{max(found, key=len)}") if found else None


def _name_of(host: str) -> str:
    """Return the name of a Host header without its port."""
    text = host.strip()
    if text.startswith("["):
        return text[1:].partition("]")[0].lower()
    return text.partition(":")[0].rstrip(".").lower()


def _is_number(name: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError, ValueError):  # ValueError for a NUL character
            socket.inet_pton(family, name.partition("%")[0])
            return True
    return False
