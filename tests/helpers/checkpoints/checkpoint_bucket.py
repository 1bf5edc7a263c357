"""A bucket in memory that responds like the object store, and checkpoint sets for it."""

import hashlib
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from urllib.parse import quote_plus

from clary.base.errors import ObjectStoreError
from clary.contract.checkpoint_sets import CheckpointFile, CheckpointSet, content_key, manifest_key, write_manifest
from clary.control.objects.checkpoint_manifests import CheckpointPlace

PLACE = CheckpointPlace("b", "ckpt/demo/")
TAKEN = datetime(2026, 1, 1, 12, tzinfo=UTC)


class FakeBucket:
    """Objects by key, listed two keys per page; `before` is called with each request and may replace or refuse it."""

    def __init__(self):
        self.objects = {}
        self.before = lambda what, key: None
        self.page_size = 2

    def put(self, relative, body):
        self.objects[PLACE.key(relative)] = body

    def remove(self, relative):
        del self.objects[PLACE.key(relative)]

    async def request(self, method, bucket, *, key="", query=(), body=b""):
        assert (method, bucket, key, body) == ("GET", "b", "", b"")
        asked = dict(query)
        self.before("list", asked["prefix"])
        prefix, after = asked["prefix"], asked.get("continuation-token", "")
        names = {}
        for name in sorted(self.objects):
            rest = name.removeprefix(prefix)
            if not name.startswith(prefix):
                continue
            is_folder = "delimiter" in asked and "/" in rest
            names.setdefault(prefix + rest.partition("/")[0] + "/" if is_folder else name, is_folder)
        page = [name for name in names if name > after][: self.page_size]
        is_truncated = bool(page) and page[-1] != list(names)[-1]
        rows = [
            f"<CommonPrefixes><Prefix>{quote_plus(name, safe='/')}</Prefix></CommonPrefixes>"
            if names[name]
            else f"<Contents><Key>{quote_plus(name, safe='/')}</Key><Size>{len(self.objects[name])}</Size></Contents>"
            for name in page
        ]
        token = f"<NextContinuationToken>{page[-1]}</NextContinuationToken>" if is_truncated else ""
        text = (
            '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><EncodingType>url</EncodingType>'
            f"<IsTruncated>{str(is_truncated).lower()}</IsTruncated>{token}{''.join(rows)}</ListBucketResult>"
        )
        return SimpleNamespace(status=200, body=text.encode())

    @asynccontextmanager
    async def open(self, bucket, key):
        assert bucket == "b"
        changed = self.before("get", key)
        body = self.objects.get(key)
        if changed is not None:
            yield changed
        elif body is None:
            yield FakeStream(b"", status=404)
        else:
            yield FakeStream(body)


class FakeStream:
    """A response in pieces of 7 bytes; with `breaks_off` it fails after the last piece."""

    def __init__(self, body, *, status=200, content_length="own", breaks_off=False):
        self.status = status
        self.content_length = len(body) if content_length == "own" else content_length
        self._body = body
        self._breaks_off = breaks_off

    async def pieces(self):
        for start in range(0, len(self._body), 7):
            yield self._body[start : start + 7]
        if self._breaks_off:
            raise ObjectStoreError("broke off", retryable=True)


def file(path, body=b"content", *, key=None, **changes):
    facts = {"path": path, "size_bytes": len(body), "sha256": hashlib.sha256(body).hexdigest(), "key": key or path}
    facts["evidence"] = "closed"
    return CheckpointFile(**(facts | changes))


def aside(path, body, host):
    """Return a file whose content is stored under a content key instead of the file's plain path."""
    return file(path, body, key=content_key(host, hashlib.md5(path.encode()).hexdigest()))


def make_set(host="algo-1", number=1, *files, **changes):
    facts = {"job_arn": "arn:x:training-job/demo", "attempt": 1, "taken_at": TAKEN, "left_out": ()}
    return CheckpointSet(host=host, number=number, files=files, **(facts | changes))


def commit(bucket, checkpoints):
    bucket.put(manifest_key(checkpoints.host, checkpoints.number), write_manifest(checkpoints))
