"""Markers of filtered listings, encrypted: where a listing goes on may be a key that the caller may not see.

Where: `permit` uses this for listings that it filters. A marker is bound to the bucket and the prefix of its listing.
"""

from __future__ import annotations

import base64
import hashlib

from cryptography.fernet import Fernet, InvalidToken

_BEGIN = "clary-hidden."
_SEPARATOR = "\0"  # in no bucket's name and no key
_PURPOSE = b"marker of a filtered listing\0"


class HiddenMarkers:
    """Encrypts and decrypts markers.

    Args:
        secret: the store's secret key; markers stay valid as long as it stays the same.
    """

    def __init__(self, secret: str) -> None:
        digest = hashlib.sha256(_PURPOSE + secret.encode()).digest()
        self._cipher = Fernet(base64.urlsafe_b64encode(digest))

    def hide(self, bucket: str, prefix: str, marker: str) -> str:
        """Return a marker as a text that only `reveal` can read; its length is about 1.4 times that of the marker.

        Args:
            bucket: of the listing.
            prefix: of the listing.
            marker: key behind which the listing goes on.
        """
        return _BEGIN + self._cipher.encrypt(_SEPARATOR.join((bucket, prefix, marker)).encode()).decode("ascii")

    def reveal(self, bucket: str, prefix: str, text: str) -> str | None:
        """Return the marker; None for a text that was not made by `hide` for this bucket and prefix."""
        if not text.startswith(_BEGIN):
            return None
        try:
            parts = self._cipher.decrypt(text.removeprefix(_BEGIN).encode()).decode().split(_SEPARATOR)
        except (InvalidToken, UnicodeError):
            return None
        return parts[2] if parts[:2] == [bucket, prefix] else None
