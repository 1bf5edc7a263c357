"""Places in S3 that a job's request names: slashes count, since `//` is a part of a key."""

import pytest
from job_key import REQUEST, job_of

from clary.control.jobs.job_grants import _folder, _place, grants_of, places_in
from clary.control.permissions.grants import Place, S3Asked
from clary.control.permissions.s3_rules import decide


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


@pytest.mark.parametrize("named", ["s3://bkt", "s3://bkt/lists/", "s3://bkt/lists/a.manifest"])
def test_a_job_may_never_write_the_manifests_of_its_channels(named):
    channel = {"S3DataType": "ManifestFile", "S3Uri": "s3://bkt/lists/a.manifest"}
    request = {
        **REQUEST,
        "InputDataConfig": [{"ChannelName": "train", "DataSource": {"S3DataSource": channel}}],
        "HyperParameters": {"lists": named},
        "CheckpointConfig": {"S3Uri": named},
    }
    grants = grants_of(job_of(request), default_bucket="clary")
    assert grants.may_read("bkt", "lists/a.manifest")
    for key in (
        "lists/a.manifest",
        "lists//a.manifest",
        "/lists/a.manifest",
        "lists/x/../a.manifest",
        "lists/",
        "lists",
    ):
        assert not grants.may_write("bkt", key)
    assert grants.may_write("bkt", "lists/a.manifest2") == (named != "s3://bkt/lists/a.manifest")
    for method, key in (("PUT", "lists/a.manifest"), ("DELETE", "lists/a.manifest")):
        decision = decide(grants, S3Asked(method=method, bucket="bkt", key=key))
        assert not decision.is_allowed
        assert "no manifest of its own channels for writing" in decision.reason
    assert not decide(
        grants,
        S3Asked(method="POST", bucket="bkt", key="", query=(("delete", ""),), deleted_keys=("lists/a.manifest",)),
    ).is_allowed
