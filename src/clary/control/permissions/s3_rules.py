"""S3 requests that a job's key may make: one table with the grants that each kind of request needs.

Where: `objects.permits.permit` calls `decide` as soon as caller and request are known, before the body is read; for
DeleteObjects it calls `decide` again with the keys. Requests outside of the table are refused. Pure.
Source: Amazon S3 API reference, "Actions"; names of actions as IAM has them.

[Note: listings of a folder without its slash] S3Downloader, `bucket.objects.filter` and others list prefix `a/b` to get
the keys below `a/b/`; the prefix matches keys of `a/bc`, too. If the job may read only the folder, the listing is
allowed and filtered.
"""

from __future__ import annotations

from clary.control.permissions.grants import ALLOWED, Decision, Grants, Refused, S3Asked

# Parameters that change only the format or the length of an answer.
_FREE = frozenset(
    {"x-id", "encoding-type", "max-keys", "fetch-owner", "max-parts", "part-number-marker", "max-uploads"}
)
_RESPONSE = "response-"
_OF_LISTING = frozenset(
    {"list-type", "prefix", "delimiter", "marker", "start-after", "continuation-token", "allow-unordered"}
)
_OF_VERSIONS = frozenset({"versions", "prefix", "delimiter", "key-marker", "version-id-marker"})
_OF_UPLOADS = frozenset({"uploads", "prefix", "delimiter", "key-marker", "upload-id-marker"})
_READING = frozenset({"GET", "HEAD"})


def decide(grants: Grants, asked: S3Asked) -> Decision:
    """Decide whether a request is allowed."""
    parameters = frozenset(
        name for name in asked.parameters if name not in _FREE and not name.lower().startswith(_RESPONSE)
    )
    if any(name.lower().startswith("x-amz-") for name in parameters):  # headers moved into a presigned URL
        parameters = frozenset(name for name in parameters if not name.lower().startswith("x-amz-"))
    if not asked.bucket:
        return _refused(grants, "s3:ListAllMyBuckets", asked, "no list of buckets")
    if asked.key:
        return _of_object(grants, asked, parameters)
    return _of_bucket(grants, asked, parameters)


def _of_bucket(grants: Grants, asked: S3Asked, parameters: frozenset[str]) -> Decision:
    if asked.method == "POST" and parameters == {"delete"}:
        if not grants.knows_bucket(asked.bucket):
            return _refused(grants, "s3:DeleteObject", asked)
        for key in asked.deleted_keys or ():
            if not grants.may_write(asked.bucket, key):
                return _refused(grants, "s3:DeleteObject", asked, key=key)
        return ALLOWED
    if asked.method not in _READING:
        return _refused(grants, "s3:CreateBucket" if asked.method == "PUT" else "s3:PutBucket*", asked)
    if asked.method == "HEAD" or parameters == {"location"}:
        return ALLOWED if grants.knows_bucket(asked.bucket) else _refused(grants, "s3:ListBucket", asked)
    if parameters <= _OF_LISTING:
        return _of_listing(grants, asked, may_filter=True)
    if ("versions" in parameters and parameters <= _OF_VERSIONS) or (
        "uploads" in parameters and parameters <= _OF_UPLOADS
    ):
        return _of_listing(grants, asked, may_filter=False)
    return _refused(grants, "s3:GetBucket*", asked)


def _of_listing(grants: Grants, asked: S3Asked, *, may_filter: bool) -> Decision:
    prefixes = asked.values("prefix")
    prefix = prefixes[0] if prefixes else ""
    # If `prefix` occurs twice, the store may use a value that is not checked here; the store may also resolve dots.
    is_clear = len(prefixes) <= 1 and not {".", ".."} & set(prefix.split("/"))
    if is_clear and grants.may_list(asked.bucket, prefix):
        return ALLOWED
    if is_clear and may_filter and prefix and grants.may_read(asked.bucket, prefix):
        return Decision(True, is_filtered=True)
    return _refused(grants, "s3:ListBucket", asked, key=prefix)


def _of_object(grants: Grants, asked: S3Asked, parameters: frozenset[str]) -> Decision:
    bucket, key = asked.bucket, asked.key
    match asked.method:
        case "GET" | "HEAD" if parameters <= {"partNumber", "versionId", "attributes", "tagging"}:
            is_open, action = grants.may_read(bucket, key), "s3:GetObject"
        case "GET" if parameters == {"uploadId"}:
            is_open, action = grants.may_write(bucket, key), "s3:ListMultipartUploadParts"
        case "PUT" if parameters <= {"partNumber", "uploadId", "tagging"}:
            is_open, action = grants.may_write(bucket, key), "s3:PutObject"
        case "POST" if parameters in ({"uploads"}, {"uploadId"}):
            is_open, action = grants.may_write(bucket, key), "s3:PutObject"
        case "DELETE" if parameters <= {"uploadId", "versionId", "tagging"}:
            is_open, action = grants.may_write(bucket, key), "s3:DeleteObject"
        case _:
            is_open, action = False, f"s3:{asked.method} {'&'.join(sorted(parameters))}".rstrip()
    if not is_open:
        return _refused(grants, action, asked)
    if len(asked.copy_sources) > 1:
        return _refused(grants, "s3:GetObject", asked, "one copy source a request")
    for source_bucket, source_key in asked.copy_sources:
        if not grants.may_read(source_bucket, source_key):
            return _refused(grants, "s3:GetObject", asked, bucket=source_bucket, key=source_key)
    return ALLOWED


def _refused(
    grants: Grants,
    action: str,
    asked: S3Asked,
    expected: str = "",
    *,
    bucket: str | None = None,
    key: str | None = None,
) -> Decision:
    bucket = asked.bucket if bucket is None else bucket
    key = asked.key if key is None else key
    if not expected and grants.is_manifest(bucket, key) and grants.may_read(bucket, key):
        expected = "no manifest of its own channels for writing"
    resource = f"arn:aws:s3:::{bucket}/{key}" if key else f"arn:aws:s3:::{bucket}"
    if not expected:
        expected = f"the S3 places that its request names ({_said(grants)})"
    return Refused(grants, action, resource, expected).decision()


def _said(grants: Grants) -> str:
    reads = ", ".join(str(place) for place in grants.reads[:5]) or "nothing"
    writes = ", ".join(str(place) for place in grants.writes[:5]) or "nothing"
    return f"to read: {reads}; to read and write: {writes}"
