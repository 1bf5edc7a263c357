"""Trials of S3: listed, fetched and cached objects, and the errors when the store refuses."""

import http.server
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from clary.contract.object_store import Listing, ObjectInfo, exchange
from clary.train.debugger.errors import ConfigurationError, StoreError, TensorFileError
from clary.train.debugger.files import step_file
from clary.train.debugger.modes import ModeKeys
from clary.train.debugger.reading.object_blocks import ObjectBlocks
from clary.train.debugger.reading.s3_access import BotoBucket, Bucket, SignedBucket, open_bucket
from clary.train.debugger.reading.s3_files import BLOCK_BYTES, S3Files, open_s3_files
from clary.train.debugger.reading.trial import Trial
from clary.train.debugger.reading.trial_places import S3Trial, create_trial
from clary.train.debugger.tensor_files import StepIndex, TensorEntry, write_step

KEYS = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
COLLECTIONS = b'{"num_workers": 1, "collections": {"odd": {"include_regex": ["^w"], "tensor_names": []}}}'


class FakeBucket:
    """Objects in memory; counts the requests."""

    name = "bucket"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.num_listed = 0
        self.reads: list[tuple[str, int, int]] = []
        self.trouble: OSError | None = None

    def list(self, prefix: str, after: str = "") -> Listing:
        if self.trouble is not None:
            raise self.trouble
        found = Listing()
        for key in sorted(self.objects):
            if key.startswith(prefix) and key > after:
                rest = key.removeprefix(prefix)
                if "/" in rest:
                    folder = prefix + rest.split("/")[0] + "/"
                    if folder not in found.folders:
                        found.folders.append(folder)
                else:
                    found.objects.append(
                        ObjectInfo(key=key, size_bytes=len(self.objects[key]), etag=f'"{hash(self.objects[key])}"')
                    )
        self.num_listed += len(found.objects) + len(found.folders)
        return found

    def read(self, key: str, start: int, length: int) -> bytes:
        self.reads.append((key, start, length))
        if key not in self.objects:
            raise FileNotFoundError(2, "there is no such object", f"s3://bucket/{key}")
        return self.objects[key][start : start + length]


@pytest.fixture
def bucket() -> FakeBucket:
    found = FakeBucket()
    found.objects["t/collections/worker_0.json"] = COLLECTIONS
    return found


def store(bucket: FakeBucket, folder: Path, step: int, worker: str = "worker_0", num_values: int = 2) -> str:
    """Put a step into the bucket, like a mirror; return its key."""
    path = folder / "one"
    index = StepIndex(step=step, mode=ModeKeys.GLOBAL, mode_step=step, worker=worker, num_workers=1, written_at=1.0)
    values = struct.pack(f"<{num_values}f", *([float(step)] * num_values))
    write_step(path, index, [(TensorEntry(name="weight", shape=(num_values,)), memoryview(values))])
    key = f"t/steps/{step_file(step, worker)}"
    bucket.objects[key] = path.read_bytes()
    return key


def trial_of(bucket: Bucket, **options: Any) -> Trial:
    return Trial(S3Files(bucket, "t", interval_s=0.0, **options), name="far")


def values_of(trial: Trial, step: int, worker: str = "worker_0") -> bytes:
    return trial.values_of(step, worker, trial.tensor("weight")._entries[step][worker])


def test_steps_are_read_as_they_appear_until_the_end(bucket: FakeBucket, tmp_path: Path) -> None:
    trial = trial_of(bucket)
    assert trial.steps() == []
    store(bucket, tmp_path, 0)
    store(bucket, tmp_path, 10)
    assert trial.steps() == [0, 10]
    assert trial.tensor_names(collection="odd") == ["weight"]
    assert values_of(trial, 10) == struct.pack("<2f", 10, 10)
    store(bucket, tmp_path, 2500)
    assert trial.steps() == [0, 10, 2500]
    assert not trial.has_ended
    bucket.objects["t/END_OF_JOB.ts"] = b""
    assert trial.steps() == [0, 10, 2500]
    assert trial.has_ended


def test_a_refresh_lists_only_new_objects_and_not_the_whole_prefix(bucket: FakeBucket, tmp_path: Path) -> None:
    for step in range(0, 3000, 10):
        store(bucket, tmp_path, step)
    trial = trial_of(bucket)
    assert len(trial.steps()) == 300
    bucket.num_listed, bucket.reads = 0, []
    trial.refresh()
    assert bucket.num_listed <= 10, "collections, folders, the last step"
    assert bucket.reads == []
    store(bucket, tmp_path, 3000)
    assert len(trial.steps()) == 301
    assert bucket.num_listed <= 25
    assert len(bucket.reads) == 1


def test_a_late_worker_is_listed_from_its_first_step(bucket: FakeBucket, tmp_path: Path) -> None:
    for step in (0, 10, 20):
        store(bucket, tmp_path, step)
    trial = trial_of(bucket)
    assert trial.workers() == ["worker_0"]
    bucket.objects["t/collections/worker_1.json"] = COLLECTIONS
    store(bucket, tmp_path, 0, "worker_1")
    assert trial.steps() == [0]
    assert trial.workers() == ["worker_0", "worker_1"]
    assert trial.tensor("weight").workers(0) == ["worker_0", "worker_1"]
    store(bucket, tmp_path, 10, "worker_1")
    assert trial.steps() == [0, 10]


def test_workers_are_sorted_by_their_numbers(bucket: FakeBucket, tmp_path: Path) -> None:
    for number in (10, 2, 0):
        store(bucket, tmp_path, 0, f"worker_{number}")
    trial = trial_of(bucket)
    assert trial.workers() == ["worker_0", "worker_2", "worker_10"]
    assert trial.tensor("weight").workers(0) == ["worker_0", "worker_2", "worker_10"]


def test_refreshes_keep_their_minimum_interval(bucket: FakeBucket, tmp_path: Path) -> None:
    trial = Trial(S3Files(bucket, "t", interval_s=3600.0), name="far")
    assert trial.steps() == []
    store(bucket, tmp_path, 0)
    assert trial.steps() == []


def test_truncated_and_deleted_objects_are_left_out(bucket: FakeBucket, tmp_path: Path) -> None:
    store(bucket, tmp_path, 0)
    key = store(bucket, tmp_path, 5)
    bucket.objects[key] = bucket.objects[key][:-1]
    store(bucket, tmp_path, 10)
    trial = trial_of(bucket)
    assert trial.steps() == [0, 10]
    assert "was cut short" in trial.damaged[key.removeprefix("t/")]
    del bucket.objects[store(bucket, tmp_path, 20)]
    assert trial.steps() == [0, 10]
    key = store(bucket, tmp_path, 30, num_values=BLOCK_BYTES)
    assert trial.steps() == [0, 10, 30]
    del bucket.objects[key]
    with pytest.raises(FileNotFoundError, match=f"s3://bucket/{key}"):
        values_of(trial, 30)


def test_an_object_that_was_replaced_is_read_again(bucket: FakeBucket, tmp_path: Path) -> None:
    key = store(bucket, tmp_path, 5)
    bucket.objects[key] = bucket.objects[key][:-1]
    trial = trial_of(bucket)
    assert trial.steps() == []
    store(bucket, tmp_path, 5)
    assert trial.steps() == [5]
    assert trial.damaged == {}
    assert values_of(trial, 5) == struct.pack("<2f", 5, 5)


def test_an_object_that_is_shorter_than_listed_is_an_error(bucket: FakeBucket) -> None:
    bucket.objects["t/a"] = bytes(100)
    files = S3Files(bucket, "t")
    assert files.size("a") == 100
    bucket.objects["t/a"] = bytes(50)
    with pytest.raises(TensorFileError, match=r"s3://bucket/t/a gave 50 bytes at 0, expected 100"):
        files.read("a", 0, 100)


def test_any_range_of_an_object_is_read_correctly(bucket: FakeBucket) -> None:
    content = bytes(index % 251 for index in range(3 * BLOCK_BYTES + 77))
    bucket.objects["t/a"] = content
    files = S3Files(bucket, "t")
    places = [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 2 * BLOCK_BYTES + 5, len(content) - 1, len(content)]
    for start in reversed(places):
        for end in places:
            assert files.read("a", start, end - start) == content[start : max(start, end)]
    assert files.read("a", 5, 10**9) == content[5:]
    with pytest.raises(FileNotFoundError, match="s3://bucket/t/b"):
        files.read("b", 0, 1)


def test_fetched_blocks_are_cached_up_to_a_limit(bucket: FakeBucket) -> None:
    bucket.objects["t/a"] = bytes(4 * BLOCK_BYTES)
    files = S3Files(bucket, "t", cache_bytes=2 * BLOCK_BYTES)
    files.read("a", 0, 2 * BLOCK_BYTES)
    files.read("a", BLOCK_BYTES, BLOCK_BYTES)
    assert len(bucket.reads) == 1
    files.read("a", 2 * BLOCK_BYTES, 10)
    assert files._blocks.num_bytes == 2 * BLOCK_BYTES
    assert sum(path.stat().st_size for path in files._blocks.folder.iterdir()) == 2 * BLOCK_BYTES
    files.read("a", BLOCK_BYTES, 10)
    assert len(bucket.reads) == 2, "used last, so kept"
    files.read("a", 0, 10)
    assert len(bucket.reads) == 3


def test_blocks_that_do_not_fit_or_are_lost_are_fetched_again(tmp_path: Path) -> None:
    blocks = ObjectBlocks(10)
    blocks.put("large", bytes(11))
    assert blocks.get("large") is None
    blocks.put("a", b"12345")
    blocks.put("a", b"123")
    assert (blocks.get("a"), blocks.num_bytes) == (b"123", 3)
    next(blocks.folder.iterdir()).write_bytes(b"1")
    assert blocks.get("a") is None
    assert blocks.num_bytes == 0
    blocks.folder.rmdir()
    blocks.put("b", b"1")  # as on a full disk
    assert blocks.get("b") is None
    assert blocks.num_bytes == 0


def test_the_folder_of_blocks_is_deleted_with_the_trial(bucket: FakeBucket, tmp_path: Path) -> None:
    files = S3Files(bucket, "t", cache_place=tmp_path)
    folder = files._blocks.folder
    assert folder.parent == tmp_path
    assert folder.is_dir()
    del files
    assert not folder.exists()


def test_many_objects_are_fetched_concurrently_and_each_once(bucket: FakeBucket, tmp_path: Path) -> None:
    keys = [store(bucket, tmp_path, step) for step in range(200)]
    threads: set[str] = set()
    whole = bucket.read

    def reading(key: str, start: int, length: int) -> bytes:
        threads.add(threading.current_thread().name)
        if key == keys[7]:
            raise StoreError("could not read it")
        return whole(key, start, length)

    bucket.read = reading  # type: ignore[method-assign]
    trial = trial_of(bucket)
    with pytest.raises(StoreError, match="could not read it"):
        trial.steps()
    bucket.read = whole  # type: ignore[method-assign]
    assert trial.steps() == list(range(200))
    assert sorted(key for key, _, _ in bucket.reads if key.startswith("t/steps/")) == sorted(keys)
    assert any(name.startswith("clary-trial") for name in threads)


def test_a_failing_store_is_named_and_retried(bucket: FakeBucket, tmp_path: Path) -> None:
    trial = trial_of(bucket)
    store(bucket, tmp_path, 0)
    bucket.trouble = StoreError("could not list s3://bucket/t/: AccessDenied")
    with pytest.raises(StoreError, match="s3://bucket/t/: AccessDenied"):
        trial.steps()
    bucket.trouble = None
    assert trial.steps() == [0]


def test_an_s3_trial_names_the_package_or_the_setting_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    for name in (*KEYS, "AWS_ENDPOINT_URL_S3", "S3_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigurationError, match=r"s3://bucket cannot be read: boto3 .* pip install boto3, or set"):
        create_trial("s3://bucket/prefix")
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    trial = create_trial("s3://bucket/prefix/debug-output/")
    assert isinstance(trial, S3Trial)
    assert (trial.name, trial.path) == ("debug-output", "s3://bucket/prefix/debug-output/")
    with pytest.raises(ConfigurationError, match="names no bucket"):
        create_trial("s3:///prefix")
    for endpoint in ("ftp://me:secret@nowhere", "http://me:secret@nowhere:port"):
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        with pytest.raises(ConfigurationError, match=r"'nowhere.*expected http://host:port") as refusal:
            create_trial("s3://bucket/prefix")
        assert "secret" not in str(refusal.value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "nowhere")
    with pytest.raises(ConfigurationError, match="expected http://host:port"):
        open_s3_files("s3://bucket/prefix")


class FakeBotoError(Exception):
    """Has the attributes of boto3's ClientError."""

    def __init__(self, code: str) -> None:
        super().__init__(f"An error occurred ({code})")
        self.response = {"Error": {"Code": code}}


class FakeClient:
    """Replaces boto3's client of S3; each listing has two pages."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def list_objects_v2(self, **request: Any) -> dict[str, Any]:
        self.asked.append(request | {})
        if request["Prefix"] == "refused/":
            raise FakeBotoError("AccessDenied")
        if "ContinuationToken" in request:
            return {"CommonPrefixes": [{"Prefix": "t/steps/"}], "IsTruncated": False}
        return {
            "Contents": [{"Key": "t/a", "Size": 3, "ETag": '"1"'}],
            "IsTruncated": True,
            "NextContinuationToken": "2",
        }

    def get_object(self, **request: Any) -> dict[str, Any]:
        self.asked.append(request)
        if request["Key"] == "gone":
            raise FakeBotoError("NoSuchKey")
        raise ConnectionError("no route")


def test_boto3_is_called_page_by_page_and_its_errors_name_the_object() -> None:
    client = FakeClient()
    bucket = BotoBucket("bucket", client)
    found = bucket.list("t/", "t/0")
    assert found == Listing([ObjectInfo(key="t/a", size_bytes=3, etag='"1"')], ["t/steps/"])
    assert client.asked[1] == {
        "Bucket": "bucket",
        "Prefix": "t/",
        "Delimiter": "/",
        "StartAfter": "t/0",
        "ContinuationToken": "2",
    }
    with pytest.raises(StoreError, match=r"could not list s3://bucket/refused/: .*AccessDenied"):
        bucket.list("refused/")
    with pytest.raises(FileNotFoundError, match="s3://bucket/gone"):
        bucket.read("gone", 0, 1)
    with pytest.raises(StoreError, match="could not read s3://bucket/a: ConnectionError: no route"):
        bucket.read("a", 4, 6)
    assert client.asked[-1]["Range"] == "bytes=4-9"


class FakeS3(http.server.BaseHTTPRequestHandler):
    """Responds like S3, and fails as the test demands."""

    protocol_version = "HTTP/1.1"
    asked: list[tuple[str, dict[str, str]]] = []
    failures: list[int] = []
    pages: list[bytes] = []
    forgets = False  # closes each connection after the response, without a `Connection: close` header

    def do_GET(self) -> None:
        self.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        status, body = 200, b"content"
        if self.failures:
            status, body = self.failures.pop(0), b"<Error><Code>Some</Code></Error>"
        elif "list-type" in self.path:
            body = self.pages.pop(0)
        elif asked := self.headers["range"]:
            first, last = asked.removeprefix("bytes=").split("-")
            status, body = 206, body[int(first) : int(last) + 1]
        self.close_connection = self.forgets
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def signed(monkeypatch: pytest.MonkeyPatch) -> Iterator[SignedBucket]:
    """A bucket with its own server."""
    FakeS3.asked, FakeS3.failures, FakeS3.pages, FakeS3.forgets = [], [], [], False
    monkeypatch.setattr(exchange, "FIRST_PAUSE_S", 0.001)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), FakeS3)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    made = SignedBucket(
        "bucket",
        endpoint=f"http://127.0.0.1:{server.server_port}/base",
        environment=KEYS | {"AWS_REGION": "eu-west-1", "AWS_SESSION_TOKEN": "token"},
    )
    yield made
    made.close()
    server.shutdown()
    server.server_close()
    thread.join()


def page(inner: str) -> bytes:
    return f'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{inner}</ListBucketResult>'.encode()


def test_our_own_requests_are_signed_and_follow_pages(signed: SignedBucket) -> None:
    FakeS3.pages += [
        page(
            "<EncodingType>url</EncodingType><IsTruncated>true</IsTruncated><NextContinuationToken>a+/=</NextContinuationToken>"
            "<Contents><Key>t/a%20b</Key><Size>3</Size><ETag>&quot;1&quot;</ETag></Contents>"
        ),
        page("<IsTruncated>false</IsTruncated><CommonPrefixes><Prefix>t/steps/</Prefix></CommonPrefixes>"),
    ]
    assert signed.list("t/", "t/0") == Listing([ObjectInfo(key="t/a b", size_bytes=3, etag='"1"')], ["t/steps/"])
    path, headers = FakeS3.asked[1]
    query = parse_qs(urlsplit(path).query)
    assert urlsplit(path).path == "/base/bucket"
    assert query["continuation-token"] == ["a+/="]
    assert (query["prefix"], query["delimiter"], query["start-after"]) == (["t/"], ["/"], ["t/0"])
    assert headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=key/")
    assert "/eu-west-1/s3/aws4_request" in headers["authorization"]
    assert headers["x-amz-security-token"] == "token"
    assert signed.read("t/a b+c", 4, 6) == b"ent"
    path, headers = FakeS3.asked[-1]
    assert (unquote(path), headers["range"]) == ("/base/bucket/t/a b+c", "bytes=4-9")


def test_our_own_requests_are_retried_if_that_can_help(signed: SignedBucket) -> None:
    FakeS3.failures += [503, 500]
    assert signed.read("a", 0, 7) == b"content"
    assert len(FakeS3.asked) == 3
    FakeS3.failures += [503] * 9
    with pytest.raises(StoreError, match=r"could not read s3://bucket/a: .* S3 answered 503 Some.* after 5 attempts"):
        signed.read("a", 0, 7)
    FakeS3.failures[:] = [403]
    with pytest.raises(StoreError, match=r"could not list s3://bucket/t/: .* S3 answered 403 Some\. Not retried"):
        signed.list("t/")
    FakeS3.failures[:] = [404]
    with pytest.raises(FileNotFoundError, match="s3://bucket/a"):
        signed.read("a", 0, 7)
    FakeS3.pages += [b"no listing"] * 5
    with pytest.raises(StoreError, match=r"could not list s3://bucket/t/: .* the listing cannot be read"):
        signed.list("t/")


def test_a_connection_that_the_store_closed_while_idle_costs_no_attempt(
    signed: SignedBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "FIRST_PAUSE_S", 3600.0)
    FakeS3.forgets = True
    for _ in range(3):
        assert signed.read("a", 0, 7) == b"content"


def test_an_unreachable_store_is_an_error_that_names_the_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setitem(sys.modules, "boto3", None)
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    with pytest.raises(StoreError, match=r"could not read s3://bucket/a: .*ConnectionRefusedError.* after 5 attempts"):
        open_bucket("bucket").read("a", 0, 1)
