"""Entries of a listing's document that a caller sees: those whose key passes a test.

Where: `permits` keeps the keys that a job may read, `front` the keys that begin with the asked prefix. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from urllib.parse import unquote_plus

# Values in XML contain no `<`, so these patterns cannot match too much.
_LISTED = re.compile(rb"<(Contents|CommonPrefixes|Version|DeleteMarker|Upload)>.*?</\1>", re.DOTALL)
_NAME = re.compile(rb"<(?:Key|Prefix)>(.*?)</(?:Key|Prefix)>", re.DOTALL)
_KEY_COUNT = re.compile(rb"<KeyCount>\d+</KeyCount>")
_URL_ENCODED = b"<EncodingType>url</EncodingType>"


def is_encoded(content: bytes) -> bool:
    """Whether a listing percent-encodes its keys."""
    return _URL_ENCODED in content


def keep_entries(content: bytes, keeps: Callable[[str], bool]) -> bytes:
    """Return a listing with only the objects, folders, versions and uploads whose key or prefix passes a test.

    Args:
        content: the document.
        keeps: receives the decoded key, or the decoded prefix of a folder.
    """
    encoded = is_encoded(content)
    num_kept = 0

    def keep(found: re.Match[bytes]) -> bytes:
        nonlocal num_kept
        named = _NAME.search(found[0])
        text = "" if named is None else unescape(named[1].decode("utf-8", "replace"))
        if not keeps(unquote_plus(text) if encoded else text):
            return b""
        num_kept += 1
        return found[0]

    kept = _LISTED.sub(keep, content)
    return _KEY_COUNT.sub(b"<KeyCount>%d</KeyCount>" % num_kept, kept, count=1)
