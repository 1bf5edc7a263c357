"""Places in S3 that a job's request names: slashes count, since `//` is a part of a key."""

import pytest

from clary.control.jobs.job_grants import _folder, _place, places_in
from clary.control.permissions.grants import Place


@pytest.mark.parametrize(
    ("uri", "is_prefix", "place"),
    [
        ("s3://bkt/a/", False, Place("bkt", "a")),
        ("s3://bkt/a//", False, Place("bkt", "a")),
        ("s3://bkt//demo/job", False, Place("bkt", "/demo/job")),
        ("s3://bkt", False, Place("bkt")),
        ("s3://bkt/", False, Place("bkt")),
        ("s3://bkt//", False, Place("bkt", "/", True)),
        ("s3://bkt//a", True, Place("bkt", "/a", True)),
        ("s3://bkt//", True, Place("bkt", "/", True)),
        ("s3://bkt/a//b", True, Place("bkt", "a//b", True)),
    ],
)
def test_a_member_s_address_grants_exactly_its_keys(uri, is_prefix, place):
    assert _place(uri, is_prefix=is_prefix) == place


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("s3://bkt//demo", {Place("bkt", "/demo")}),
        ("--train s3://bkt/a// --x", {Place("bkt", "a"), Place("bkt", "a// --x")}),
        ("s3://bkt/a//*.csv", {Place("bkt", "a")}),
        ("s3://bkt//", {Place("bkt", "/", True)}),
        ("s3://bkt/", {Place("bkt")}),
    ],
)
def test_a_named_address_grants_exactly_its_keys(text, places):
    assert set(places_in(text)) == places


def test_a_folder_covers_keys_below_it_and_no_others():
    place = _folder("bkt", "/demo/")
    assert place.covers("bkt", "/demo/x")
    assert place.covers("bkt", "/demo//x")
    assert not place.covers("bkt", "demo/x")
    assert not place.covers("bkt", "/demos")
    slash = _folder("bkt", "//")
    assert slash.covers("bkt", "//x")
    assert not slash.covers("bkt", "a")
