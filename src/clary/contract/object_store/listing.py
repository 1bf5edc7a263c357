"""Listings of a bucket, read page by page.

Source: Amazon S3 API reference, "ListObjectsV2".
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote_plus

from clary.contract.object_store.exchange import Exchange, S3Request, Trouble


@dataclass(frozen=True, kw_only=True)
class ObjectInfo:
    """An object of a bucket."""

    key: str
    size_bytes: int
    etag: str  # ETag with its quotes, as S3 returns it
    metadata: Mapping[str, str] = field(default_factory=dict)  # set by `head`; lower-case names, without x-amz-meta-


@dataclass
class Listing:
    """One folder: its objects, and its subfolders, whose names end in a slash."""

    objects: list[ObjectInfo] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)


@dataclass
class _Page(Listing):
    next_token: str = ""


def pages_of(exchange: Exchange, bucket: str, query: Mapping[str, str]) -> Iterator[Listing]:
    """Yield a bucket's pages in the store's order.

    Args:
        query: `prefix`, `delimiter` and `start-after` of the listing.
    Raises: ObjectStoreError.
    """
    prefix = query.get("prefix", "")
    asked = {"list-type": "2", "encoding-type": "url", **query}
    while True:
        request = S3Request(method="GET", bucket=bucket, query=asked)

        def attempt(request: S3Request = request) -> _Page:
            with exchange.once(request) as response:
                return _page(exchange.with_keys(response.read_all()))

        page = exchange.retrying(attempt, request)
        yield Listing(
            [info for info in page.objects if info.key.startswith(prefix)],
            [folder for folder in page.folders if folder.startswith(prefix)],
        )
        if not page.next_token:
            return
        asked = {**asked, "continuation-token": page.next_token}


def _page(body: bytes) -> _Page:
    """Read one page. Raises: Trouble for a malformed answer."""
    objects, folders = [], []
    texts = {}
    try:
        for element in ET.fromstring(body):  # noqa: S314 - of our own store; expat limits expansions itself
            name = element.tag.rpartition("}")[2]
            facts = {child.tag.rpartition("}")[2]: child.text or "" for child in element}
            if name == "Contents":
                objects.append((facts["Key"], int(facts.get("Size", "0")), facts.get("ETag", "")))
            elif name == "CommonPrefixes":
                folders.append(facts["Prefix"])
            else:
                texts[name] = element.text or ""
    except (ET.ParseError, ValueError, KeyError) as error:
        raise Trouble(f"the listing cannot be read: {error}") from error
    # A store that does not support encoding-type=url does not repeat the parameter in its answer.
    decode = unquote_plus if texts.get("EncodingType") == "url" else str
    is_truncated = texts.get("IsTruncated") == "true"
    token = texts.get("NextContinuationToken", "") if is_truncated else ""
    if is_truncated and not token:
        raise Trouble("the listing says that more follows, but not where", is_retryable=False)
    return _Page(
        [ObjectInfo(key=decode(key), size_bytes=size_bytes, etag=etag) for key, size_bytes, etag in objects],
        [decode(folder) for folder in folders],
        token,
    )
