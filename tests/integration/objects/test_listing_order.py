"""Listings of objects name the keys in the order of their bytes, page by page and behind every marker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from objects_service import BUCKET, Service, ServiceThread

FOLDER = "order"
NAMES = ["Z", "a", "a-b/1", "a-b/2", "a.txt", "a//x", "a/1", "a/2", "a/c-1", "a/c.py", "a/c/d", "a0", "é/1"]
NAMES += ["b!/1", "b/", "b/1", "b\\1", "d-1/x", "d-1/y", "d-1/z", "d/x", "d/y", "d/z"]
KEYS = sorted((f"{FOLDER}/{name}" for name in NAMES), key=str.encode)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    thread = ServiceThread(tmp_path_factory.mktemp("home"))
    yield thread.service
    thread.close()


@pytest.fixture(scope="module")
def plain(service: Service) -> Iterator[Any]:
    client = service.client()
    for key in KEYS:
        client.put_object(Bucket=BUCKET, Key=key, Body=b"")
    yield client
    client.close()


def listed(client: Any, operation: str, page_size: int = 1000, **facts: Any) -> list[str]:
    pages = client.get_paginator(operation).paginate(
        **{"Bucket": BUCKET, "Prefix": f"{FOLDER}/", "PaginationConfig": {"PageSize": page_size}, **facts}
    )
    return [
        text
        for page in pages
        for text in (
            *(entry["Key"] for entry in page.get("Contents", [])),
            *(entry["Prefix"] for entry in page.get("CommonPrefixes", [])),
        )
    ]


@pytest.mark.parametrize("operation", ["list_objects", "list_objects_v2"])
@pytest.mark.parametrize("page_size", [1, 2, 7, 1000])
def test_pages_are_in_the_order_of_the_keys(plain: Any, operation: str, page_size: int) -> None:
    assert listed(plain, operation, page_size) == KEYS
    begin = f"{FOLDER}/a"
    assert listed(plain, operation, page_size, Prefix=begin) == [key for key in KEYS if key.startswith(begin)]


@pytest.mark.parametrize("operation", ["list_objects", "list_objects_v2"])
@pytest.mark.parametrize("page_size", [1, 3])
def test_folders_and_objects_are_in_one_order(plain: Any, operation: str, page_size: int) -> None:
    inner = len(FOLDER) + 1
    cut = [key.find("/", inner) for key in KEYS]
    expected = sorted({key[: end + 1] if end > 0 else key for key, end in zip(KEYS, cut, strict=True)}, key=str.encode)
    found = listed(plain, operation, page_size, Delimiter="/")
    assert sorted(found, key=str.encode) == expected
    assert page_size > 1 or found == expected


def test_a_listing_begins_behind_every_marker(plain: Any) -> None:
    markers = [*KEYS, *(f"{FOLDER}/{name}" for name in ("", "a-", "a/", "a/c", "d", "d-1", "b", "y"))]
    for marker in markers:
        expected = [key for key in KEYS if key.encode() > marker.encode()]
        assert listed(plain, "list_objects_v2", 4, StartAfter=marker) == expected, marker
        one = plain.list_objects(Bucket=BUCKET, Prefix=f"{FOLDER}/", Marker=marker)
        assert [entry["Key"] for entry in one.get("Contents", [])] == expected, marker
        assert one["Marker"] == marker


def test_a_listing_tells_what_it_repeats_and_where_it_goes_on(plain: Any) -> None:
    page = plain.list_objects_v2(Bucket=BUCKET, Prefix=f"{FOLDER}/a", MaxKeys=2, FetchOwner=True)
    assert (page["KeyCount"], page["MaxKeys"], page["IsTruncated"], page["Prefix"]) == (2, 2, True, f"{FOLDER}/a")
    assert page["Contents"][0]["Owner"]["ID"]
    assert page["NextContinuationToken"]
    assert plain.list_objects(Bucket=BUCKET, Prefix=f"{FOLDER}/a", MaxKeys=1)["Contents"][0]["Owner"]["ID"]
    assert "Owner" not in plain.list_objects_v2(Bucket=BUCKET, Prefix=f"{FOLDER}/a", MaxKeys=1)["Contents"][0]
    nothing = plain.list_objects_v2(Bucket=BUCKET, Prefix=f"{FOLDER}/none", MaxKeys=2)
    assert (nothing["KeyCount"], nothing["IsTruncated"]) == (0, False)
