"""Answers to ListObjects and ListObjectsV2 of the embedded store, written anew in S3's order.

Where: `front` sends these requests to the store through here ([Note: the store's order] in `key_order`).
Source: Amazon S3 API reference, ListObjects, ListObjectsV2.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from html import unescape
from urllib.parse import quote, unquote_plus
from xml.sax.saxutils import escape

from clary.contract.object_store.stored_names import stored_name
from clary.control.objects import listed_entries
from clary.control.objects.listings.empty_listings import empty_listing
from clary.control.objects.listings.key_order import Entry, KeyWalk, NoProgress, Window
from clary.control.objects.s3_request import MAX_PAGE, S3Request

MIN_WINDOW = 20  # entries that the store is asked for at least; a folder and an object of one name must fit
# Receives a request for a listing; returns the store's document, with keys in place of stored names, or None for an
# answer that is not a listing.
Send = Callable[[S3Request], Awaitable[bytes | None]]

_PARAMETERS = frozenset(
    {
        "list-type",
        "prefix",
        "delimiter",
        "marker",
        "start-after",
        "continuation-token",
        "max-keys",
        "encoding-type",
        "fetch-owner",
        "x-id",
    }
)
# Values in XML contain no `<`, so these patterns cannot match too much.
_ENTRY = re.compile(rb"<(Contents|CommonPrefixes)>\s*<(Key|Prefix)>(.*?)</\2>.*?</\1>", re.DOTALL)
_TRUNCATED = b"<IsTruncated>true</IsTruncated>"


class _NotListed(Exception):
    """The store's answer is no listing."""


def lists_in_order(asked: S3Request) -> bool:
    """Whether a request is a listing of objects that is written anew: with delimiter `/`, or without one."""
    is_of_bucket = asked.method == "GET" and bool(asked.bucket) and not asked.key
    names = {name for name, _ in asked.query}
    given = _parameters(asked)
    return (
        is_of_bucket
        and names <= _PARAMETERS
        and given.get("delimiter", "") in ("", "/")
        and given.get("list-type", "2") == "2"
        and _num_wanted(given) > 0
    )


async def ordered_listing(asked: S3Request, send: Send) -> bytes | None:
    """Return the document of one page, or None if the store refuses a request of it or shows no entries that follow.

    Args:
        asked: the client's request, for which `lists_in_order` is true.
        send: sends a request to the store.
    Raises: WireError of `send`.
    """
    given = _parameters(asked)
    is_first_version = "list-type" not in given
    marker = given.get("marker", "") if is_first_version else given.get("start-after", "")
    marker = given.get("continuation-token", "") or marker if not is_first_version else marker
    most = _num_wanted(given)
    kept = [(name, given[name]) for name in ("delimiter", "encoding-type", "fetch-owner") if name in given]
    if is_first_version:
        kept = [*kept, ("fetch-owner", "true")]

    async def fetch(prefix: str, after: str, is_brief: bool) -> Window:
        size = MIN_WINDOW if is_brief else max(most + 1, MIN_WINDOW)
        query = [("list-type", "2"), *kept, ("prefix", prefix), ("max-keys", str(size))]
        query += [("start-after", after)] if after else []
        content = await send(replace(asked, query=tuple(query)))
        if content is None:
            raise _NotListed
        return _window(content, prefix)

    entries: list[Entry] = []
    try:
        async for entry in KeyWalk(fetch, has_folders=bool(given.get("delimiter"))).entries(
            given.get("prefix", ""), marker
        ):
            if not entries or entry.key > entries[-1].key:
                entries.append(entry)
            if len(entries) > most:
                break
    except (_NotListed, NoProgress):
        return None
    return _document(asked, entries[:most], is_truncated=len(entries) > most, is_first_version=is_first_version)


def _window(content: bytes, prefix: str) -> Window:
    is_encoded = listed_entries.is_encoded(content)
    found = []
    for match in _ENTRY.finditer(content):
        text = unescape(match[3].decode("utf-8", "replace"))
        found.append(Entry(key=unquote_plus(text) if is_encoded else text, element=match[0]))
    entries = [entry for entry in found if entry.key.startswith(prefix)]
    # The store writes all folders of a window behind all objects.
    entries.sort(key=lambda entry: stored_name(entry.key).replace("/", "\0"))
    return Window(entries=entries, is_last=_TRUNCATED not in content)


def _document(asked: S3Request, entries: list[Entry], *, is_truncated: bool, is_first_version: bool) -> bytes:
    content = empty_listing(asked)
    given = _parameters(asked)
    is_encoded = given.get("encoding-type") == "url"
    if is_first_version and is_encoded:  # botocore does not decode the prefix of ListObjects
        begin, _, rest = content.partition(b"<Prefix>")
        content = begin + b"<Prefix>" + escape(given.get("prefix", "")).encode() + rest[rest.index(b"</Prefix>") :]
    content = content.replace(b"<KeyCount>0<", b"<KeyCount>%d<" % len(entries), 1)
    added = b""
    if is_truncated:
        content = content.replace(b"<IsTruncated>false<", b"<IsTruncated>true<", 1)
        last = entries[-1].key
        if is_first_version:
            added = b"<NextMarker>%b</NextMarker>" % escape(quote(last) if is_encoded else last).encode()
        else:
            added = b"<NextContinuationToken>%b</NextContinuationToken>" % escape(last).encode()
    end = b"</ListBucketResult>"
    return content.removesuffix(end) + added + b"".join(entry.element for entry in entries) + end


def _parameters(asked: S3Request) -> dict[str, str]:
    return dict(reversed(asked.query))  # the first of several parameters of one name counts


def _num_wanted(given: dict[str, str]) -> int:
    text = given.get("max-keys") or str(MAX_PAGE)
    return min(int(text), MAX_PAGE) if text.isascii() and text.isdigit() and len(text) <= len("1000000000") else 0
