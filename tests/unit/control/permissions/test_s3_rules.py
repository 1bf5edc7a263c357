"""Rights of a job's key in S3: every kind of request, inside and outside the prefixes of the job's request."""

import pytest
from job_key import GRANTS, REQUEST, job_of

from clary.control.jobs.job_grants import grants_of, places_in
from clary.control.permissions.grants import Place, S3Asked
from clary.control.permissions.s3_rules import decide

READABLE = [
    ("data", "train/part-0001"),
    ("data", "train/part-x/y"),
    ("data", "list.manifest"),
    ("clary", "job-1/source/sourcedir.tar.gz"),
    ("clary", "tensors/old/debug-output/index/000"),
]
WRITABLE = [
    ("clary", "out/job-1/output/model.tar.gz"),
    ("clary", "out/job-1"),
    ("clary", "checkpoints/mine/x"),
    ("clary", "tensors/job-1/debug-output/events"),
    ("clary", "remote/job-1/results/x"),
    ("clary", "trial-component-artifacts/digits-run/notes"),
    ("shared", "vocabulary.txt"),
    ("shared", "a/x"),
    ("shared", "b/x"),
    ("shared", "images/cat.jpg"),
    ("shared", "cache/x"),
    ("shared", "from/x"),
]
SHUT = [
    ("clary", "out/job-10/output/model.tar.gz"),
    ("clary", "out/job-2/output/model.tar.gz"),
    ("clary", "out"),
    ("clary", "out/"),
    ("clary", "job-1/source"),
    ("clary", "job-1/source/sourcedir.tar.gz2"),
    ("clary", "checkpoints/mine2/x"),
    ("clary", "checkpoints/other"),
    ("clary", "tensors/job-2/x"),
    ("clary", "trial-component-artifacts/other/x"),
    ("clary", "anything"),
    ("data", "train/other"),
    ("data", "list.manifest2"),
    ("data", "train"),
    ("shared", "vocabulary.txt2"),
    ("shared", "secret"),
    ("others", "train/part-0001"),
]


def may(method, bucket="", key="", query=(), **more):
    pairs = tuple((part, "") if isinstance(part, str) else part for part in query)
    return decide(GRANTS, S3Asked(method=method, bucket=bucket, key=key, query=pairs, **more))


READS = [("GET", ()), ("HEAD", ()), ("GET", ("tagging",)), ("GET", (("versionId", "1"),)), ("HEAD", ("partNumber",))]
WRITES = [
    ("PUT", ()),
    ("PUT", ("tagging",)),
    ("PUT", ("partNumber", "uploadId")),
    ("POST", ("uploads",)),
    ("POST", ("uploadId",)),
    ("GET", ("uploadId",)),
    ("DELETE", ()),
    ("DELETE", ("uploadId",)),
    ("DELETE", ("versionId",)),
]
NEVER = [
    ("PUT", ("acl",)),
    ("PUT", ("retention",)),
    ("PUT", ("legal-hold",)),
    ("POST", ("select", "select-type")),
    ("POST", ("restore",)),
    ("POST", ()),
    ("GET", ("acl",)),
    ("GET", ("torrent",)),
    ("PATCH", ()),
    ("OPTIONS", ()),
]
BUCKET_NEVER = [
    ("PUT", ()),
    ("DELETE", ()),
    ("POST", ()),
    *(("PUT", (name,)) for name in ("policy", "acl", "cors", "lifecycle", "versioning", "tagging", "notification")),
    *(("GET", (name,)) for name in ("policy", "acl", "cors", "lifecycle", "versioning", "tagging", "logging")),
    ("DELETE", ("policy",)),
    ("POST", ("delete", "prefix")),
]


@pytest.mark.parametrize(("bucket", "key"), [*READABLE, *WRITABLE])
def test_objects_that_the_request_names_can_be_read(bucket, key):
    for method, query in READS:
        assert may(method, bucket, key, query).is_allowed, (method, query)
    assert may("GET", bucket, key, (("response-content-type", "x"), ("x-id", "GetObject"))).is_allowed


@pytest.mark.parametrize(("bucket", "key"), WRITABLE)
def test_outputs_and_prefixes_in_the_request_s_texts_can_be_written(bucket, key):
    for method, query in WRITES:
        assert may(method, bucket, key, query).is_allowed, (method, query)
    assert may("POST", bucket, "", ("delete",), deleted_keys=(key,)).is_allowed
    assert may("PUT", bucket, key, copy_sources=(READABLE[0],)).is_allowed


@pytest.mark.parametrize(("bucket", "key"), READABLE)
def test_inputs_can_not_be_written(bucket, key):
    for method, query in WRITES:
        assert not may(method, bucket, key, query).is_allowed, (method, query)
    assert not may("POST", bucket, "", ("delete",), deleted_keys=(key,)).is_allowed


@pytest.mark.parametrize(("bucket", "key"), SHUT)
def test_other_keys_can_be_neither_read_nor_written(bucket, key):
    for method, query in [*READS, *WRITES]:
        decision = may(method, bucket, key, query)
        assert not decision.is_allowed, (method, query)
        for word in ("job-1", f"arn:aws:s3:::{bucket}/{key}", "s3://clary/out/job-1", 'job_api_access = "full"'):
            assert word in decision.reason
    assert not may("POST", bucket, "", ("delete",), deleted_keys=(WRITABLE[0][1], key)).is_allowed
    own_bucket, own_key = WRITABLE[0]
    assert not may("PUT", own_bucket, own_key, copy_sources=((bucket, key),)).is_allowed, "a copy reads its source"
    assert not may("PUT", own_bucket, own_key, copy_sources=(WRITABLE[1], (bucket, key))).is_allowed


@pytest.mark.parametrize(("method", "query"), NEVER)
def test_a_request_that_is_in_no_table_is_refused_for_own_objects_too(method, query):
    assert not may(method, *WRITABLE[0], query).is_allowed


@pytest.mark.parametrize(("method", "query"), BUCKET_NEVER)
def test_buckets_can_not_be_created_removed_or_configured(method, query):
    assert not may(method, "clary", "", query).is_allowed
    assert not may(method, "new-bucket", "", query).is_allowed


def test_buckets_are_not_listed_and_only_those_of_the_request_can_be_queried():
    assert not may("GET").is_allowed
    for bucket in ("clary", "data", "shared"):
        assert may("HEAD", bucket).is_allowed
        assert may("GET", bucket, "", ("location",)).is_allowed
    assert not may("HEAD", "others").is_allowed
    assert not may("GET", "others", "", ("location",)).is_allowed


@pytest.mark.parametrize(
    ("bucket", "prefix"),
    [
        ("clary", "out/job-1/"),
        ("clary", "out/job-1/output/"),
        ("data", "train/part-"),
        ("data", "train/part-0"),
        ("shared", "images/"),
    ],
)
def test_prefixes_inside_the_request_s_prefixes_can_be_listed(bucket, prefix):
    for names in (("list-type", "delimiter"), ("marker",), ("uploads",), ("versions",), ("start-after", "max-keys")):
        decision = may("GET", bucket, "", (*names, ("prefix", prefix)))
        assert decision.is_allowed
        assert not decision.is_filtered


@pytest.mark.parametrize(("bucket", "prefix"), [("clary", "out/job-1"), ("shared", "vocabulary.txt")])
def test_a_folder_without_its_trailing_slash_is_listed_through_a_filter(bucket, prefix):
    assert may("GET", bucket, "", ("list-type", ("prefix", prefix))).is_filtered
    for name in ("uploads", "versions"):
        assert not may("GET", bucket, "", (name, ("prefix", prefix))).is_allowed


@pytest.mark.parametrize(
    "query",
    [
        (),
        (("prefix", ""),),
        (("prefix", "out/"),),
        (("prefix", "out/job-10"),),
        (("prefix", "out/job-"),),
        (("prefix", "out/job-1/../job-2/"),),
        (("prefix", "out/job-1/./"),),
        (("prefix", "out/job-1/"), ("prefix", "out/")),
        (("prefix", "out/"), ("prefix", "out/job-1/")),
        (("prefix", "out/job-1/"), "policy"),
        ("uploads",),
        ("versions",),
    ],
)
def test_prefixes_outside_or_ambiguous_are_not_listed(query):
    assert not may("GET", "clary", "", ("list-type", *query)).is_allowed
    assert not may("GET", "clary", "", query).is_allowed


def test_a_bucket_that_the_owner_names_without_a_prefix_is_fully_accessible():
    request = {**REQUEST, "HyperParameters": {"data": "s3://whole"}, "OutputDataConfig": {"S3OutputPath": "s3://clary"}}
    grants = grants_of(job_of(request), default_bucket="clary")
    assert grants.may_write("whole", "any/key")
    assert grants.may_list("whole", "")
    assert grants.may_write("clary", "job-1/output/model.tar.gz")
    assert not grants.may_read("clary", "job-2/output/model.tar.gz")


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("s3://bucket/key", [("bucket", "key")]),
        ("s3a://bucket/a b/c", [("bucket", "a b/c"), ("bucket", "a")]),
        ("--in=s3://bucket/key --out s3://other/x/", [("bucket", "key"), ("other", "x")]),
        ("s3://one-bucket/x s3://two-bucket/y", [("one-bucket", "x"), ("two-bucket", "y")]),
        ('["s3://bucket/a","s3://bucket/b"]', [("bucket", "a"), ("bucket", "b")]),
        ('"{\\"p\\": \\"s3://bucket/a\\"}"', [("bucket", "a")]),
        ("s3://bucket/data/*/x.csv", [("bucket", "data")]),
        ("s3://bucket", [("bucket", "")]),
        ("s3://b/k", []),
        ("https://bucket/key", []),
        ("s3://", []),
    ],
)
def test_s3_addresses_are_found_in_texts(text, places):
    found = set(places_in(text))
    assert {Place(*place) for place in places} <= found
    assert {place.bucket for place in found} == {bucket for bucket, _ in places}


def test_the_search_for_addresses_is_fast_for_hostile_texts():
    for text in ("s3://" * 20_000, "s3://bucket/" + "a " * 50_000, "s3://bucket/x," * 5_000, "s3://" + "a" * 100_000):
        list(places_in(text))
