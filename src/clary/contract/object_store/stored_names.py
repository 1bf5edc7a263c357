r"""Names under which the embedded store keeps the keys that it would take for other keys.

Where: every request to the embedded store passes through here: `exchange` (agents) and `control.objects` (the service).
Pure. Endpoints of other stores have `Endpoint.aliases_keys` false, and are sent keys as they are.

[Note: keys that the store would alias] SeaweedFS keeps objects as files of folders: it stores `a//b` and `/a/b` as
`a/b`, and lists `a\b` as `a/b`. S3 has all of these as keys of their own, and clients make them: `S3Uploader.upload` to
`s3://bucket/prefix/` writes `prefix//file`. So an empty part and a backslash are written as two characters each: the
character that precedes `/` or `\` in Unicode (`.`, `[`) and MARK, which sorts behind all others. The stored names thus
sort as the keys do. A key that holds MARK itself is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote, unquote

MARK = "\U0010fffd"  # of a private plane: no standard assigns it, and XML 1.0 can hold it
_EMPTY_PART = f".{MARK}"
_BACKSLASH = f"[{MARK}"
_NAMES_OF_QUERY = frozenset({"prefix", "marker", "start-after", "key-marker", "continuation-token"})


def stored_name(key: str) -> str:
    """Return the name under which the store keeps a key, or looks for a prefix or marker of a listing."""
    *folders, last = key.replace("\\", _BACKSLASH).split("/")
    return "/".join([*(folder or _EMPTY_PART for folder in folders), last])


def stored_query(query: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return a query whose prefix and markers are stored names.

    Args:
        query: names and values, decoded.
    """
    return [(name, stored_name(value) if name in _NAMES_OF_QUERY else value) for name, value in query]


def stored_copy_source(value: str) -> str:
    """Return a header x-amz-copy-source that names the stored object.

    Args:
        value: `/bucket/key`, percent-encoded; a version may follow.
    """
    path, mark, version = value.partition("?")
    bucket, _, key = unquote(path).removeprefix("/").partition("/")
    return f"/{bucket}/{quote(stored_name(key))}{mark}{version}"


def may_match_others(prefix: str) -> bool:
    """Whether the store may list keys that do not begin with a prefix, because it ends as a replacement begins."""
    return prefix.endswith(_BACKSLASH[0]) or prefix.rpartition("/")[2] == _EMPTY_PART[0]


def with_keys(document: bytes) -> bytes:
    """Return an XML document of the store that names keys in place of stored names, even where it encodes them."""
    if _MARK_UTF8 not in document and _MARK_ENCODED not in document:
        return document
    for stored, key in _REPLACED:
        document = document.replace(stored, key)
    return document


_MARK_UTF8 = MARK.encode()
_MARK_ENCODED = quote(MARK).encode()
_REPLACED = (
    (_EMPTY_PART.encode(), b""),
    (_BACKSLASH.encode(), b"\\"),
    (quote(_EMPTY_PART).encode(), b""),
    (quote(_BACKSLASH).encode(), b"%5C"),
)
