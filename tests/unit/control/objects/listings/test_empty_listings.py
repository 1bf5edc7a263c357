"""Listings without keys, which the front writes itself."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from clary.base.errors import WireError
from clary.control.objects.listings.empty_listings import empty_listing
from clary.control.objects.s3_request import parse_request


def listing(query: str) -> tuple[str, list[tuple[str, str]]]:
    root = ET.fromstring(empty_listing(parse_request("GET", "/bucket", query)))
    return root.tag.rpartition("}")[2], [(item.tag.rpartition("}")[2], item.text or "") for item in root]


@pytest.mark.parametrize(
    ("query", "root", "members"),
    [
        (
            "prefix=/x",
            "ListBucketResult",
            [("Name", "bucket"), ("Prefix", "/x"), ("Marker", ""), ("MaxKeys", "1000"), ("IsTruncated", "false")],
        ),
        (
            "list-type=2&prefix=%2Fx%20%00%3C&delimiter=/&max-keys=5000&encoding-type=url&continuation-token=a/%2B",
            "ListBucketResult",
            [
                ("Name", "bucket"),
                ("Prefix", "/x%20%00%3C"),
                ("ContinuationToken", "a/+"),
                ("Delimiter", "/"),
                ("KeyCount", "0"),
                ("MaxKeys", "1000"),
                ("EncodingType", "url"),
                ("IsTruncated", "false"),
            ],
        ),
        (
            "list-type=2&prefix=a%00%3C/&max-keys=0&start-after=k",
            "ListBucketResult",
            [
                ("Name", "bucket"),
                ("Prefix", "a?</"),
                ("StartAfter", "k"),
                ("KeyCount", "0"),
                ("MaxKeys", "0"),
                ("IsTruncated", "false"),
            ],
        ),
        (
            "versions&prefix=/x&key-marker=k",
            "ListVersionsResult",
            [
                ("Name", "bucket"),
                ("Prefix", "/x"),
                ("KeyMarker", "k"),
                ("VersionIdMarker", ""),
                ("MaxKeys", "1000"),
                ("IsTruncated", "false"),
            ],
        ),
        (
            "uploads&prefix=/x&max-uploads=3",
            "ListMultipartUploadsResult",
            [
                ("Bucket", "bucket"),
                ("Prefix", "/x"),
                ("KeyMarker", ""),
                ("UploadIdMarker", ""),
                ("MaxUploads", "3"),
                ("IsTruncated", "false"),
            ],
        ),
    ],
)
def test_an_empty_listing_repeats_the_parameters_of_its_request(
    query: str, root: str, members: list[tuple[str, str]]
) -> None:
    assert listing(query) == (root, members)


@pytest.mark.parametrize("number", ["x", "-1", "9" * 5000])
def test_a_number_of_keys_that_is_no_number_is_refused(number: str) -> None:
    with pytest.raises(WireError, match="Provided max-keys not an integer") as error:
        listing(f"prefix=/x&max-keys={number}")
    assert error.value.code == "InvalidArgument"
