"""Keys below a prefix, page by page.

Where: `checkpoint_manifests` and `checkpoint_sets` find manifests and sizes with it, `downloads_page` files of jobs.
Source: ListObjectsV2 (Amazon S3 API reference).
"""

from __future__ import annotations

import http
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import unquote_plus

from clary.base.errors import ObjectStoreError
from clary.control.objects.store_client import StoreAnswer, StoreClient

MAX_SIZE_DIGITS = 18  # digits of a number of bytes


@dataclass(frozen=True, kw_only=True)
class ListedObject:
    """One key of a listing."""

    key: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class ListingPage:
    """One page of a listing: objects, folders, and the token of the next page."""

    objects: tuple[ListedObject, ...]
    folders: tuple[str, ...]  # common prefixes, ending with a slash; empty unless requested
    next_token: str  # empty on the last page


async def pages(
    client: StoreClient, bucket: str, prefix: str, *, with_folders: bool = False
) -> AsyncIterator[ListingPage]:
    """Yield all pages of a listing in the store's order; no page for a bucket that does not exist.

    Args:
        with_folders: whether keys with a slash after the prefix are grouped into folders, not listed one by one.
    Raises: ObjectStoreError if the store does not answer, refuses, or answers with a malformed listing.
    """
    token = ""
    while True:
        query = [("list-type", "2"), ("encoding-type", "url"), ("prefix", prefix)]
        query += [("delimiter", "/")] if with_folders else []
        query += [("continuation-token", token)] if token else []
        answer = await client.request("GET", bucket, query=query)
        if answer.status == http.HTTPStatus.NOT_FOUND:
            return
        page = _page(answer, bucket, prefix)
        yield page
        if not page.next_token:
            return
        if page.next_token == token:
            raise _no_listing(bucket, prefix, answer, "its next page is itself")
        token = page.next_token


def _page(answer: StoreAnswer, bucket: str, prefix: str) -> ListingPage:
    if answer.status != http.HTTPStatus.OK:
        raise _no_listing(bucket, prefix, answer, "it was refused")
    try:
        root = ET.fromstring(answer.body)  # noqa: S314 - of our own store; expat limits expansions itself
    except ET.ParseError as error:
        raise _no_listing(bucket, prefix, answer, f"its XML is broken: {error}") from error
    found, folders = [], []
    texts = {}
    for element in root:
        name = _local_name(element.tag)
        if name == "Contents":
            facts = {_local_name(child.tag): child.text or "" for child in element}
            found.append((facts.get("Key", ""), facts.get("Size", "")))
        elif name == "CommonPrefixes":
            folders += [child.text or "" for child in element]
        else:
            texts[name] = element.text or ""
    # A store that does not know encoding-type=url does not repeat it.
    decode = unquote_plus if texts.get("EncodingType") == "url" else str
    token = texts.get("NextContinuationToken", "") if texts.get("IsTruncated") == "true" else ""
    if texts.get("IsTruncated") == "true" and not token:
        raise _no_listing(bucket, prefix, answer, "more follows, but it does not say where")
    return ListingPage(
        objects=tuple(ListedObject(key=decode(key), size_bytes=_size(size)) for key, size in found),
        folders=tuple(decode(folder) for folder in folders),
        next_token=token,
    )


def _size(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_SIZE_DIGITS else 0


def _no_listing(bucket: str, prefix: str, answer: StoreAnswer, reason: str) -> ObjectStoreError:
    return ObjectStoreError(
        f"the object store answered {answer.status} when asked for the keys below s3://{bucket}/{ascii(prefix)[1:-1]}: "
        f"{reason}; see `clary doctor`",
        retryable=answer.status >= http.HTTPStatus.INTERNAL_SERVER_ERROR,
        details={"bucket": bucket, "key": prefix, "status": answer.status},
    )


def _local_name(tag: str) -> str:
    return tag.rpartition("}")[2]
