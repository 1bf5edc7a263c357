"""Files of distributed checkpoints in a real object store: SeaweedFS behind our front, through boto3."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from objects_service import BUCKET, MIB, USER, Service, ServiceThread

from clary.contract.launch_plan import Credentials
from clary.train.parallel.fsdp.checkpoint import s3, s3_errors
from clary.train.parallel.fsdp.checkpoint.s3 import S3FileSystem

_ENTER_S = 0.2  # time for a second thread to enter while the first is inside


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    thread = ServiceThread(tmp_path_factory.mktemp("home"))
    yield thread.service
    thread.close()


@pytest.fixture
def client(service: Service) -> Iterator[Any]:
    client = service.client()
    yield client
    client.close()


def sent(client: Any) -> list[str]:
    """Return a list that receives the name of each operation that the client sends."""
    names: list[str] = []
    client.meta.events.register("before-send.s3.*", lambda event_name, **_: names.append(event_name.rpartition(".")[2]))
    return names


@pytest.fixture(autouse=True)
def _without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_errors, "_FIRST_WAIT_S", 0.0)


def write(files: S3FileSystem, path: str, data: bytes) -> None:
    with files.create_stream(path, "wb") as file:
        file.write(data)


@pytest.mark.parametrize("size", [0, 10, 11 * MIB])
def test_a_written_object_is_read_whole_and_in_ranges(client: Any, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(s3, "PART_BYTES", 5 * MIB)
    monkeypatch.setattr(s3, "_READ_BYTES", 4 * MIB)
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    files, path = S3FileSystem(client=client), f"s3://{BUCKET}/whole/{size}"
    names = sent(client)
    write(files, path, data)
    assert names.count("UploadPart") == (3 if size > 5 * MIB else 0)
    names.clear()
    with files.create_stream(path, "rb") as file:
        assert file.read() == data
        assert names.count("GetObject") == -(-size // (5 * MIB))
        file.seek(size // 2)
        assert file.read(7) == data[size // 2 :][:7]
    files.rename(path, f"{path}-moved")
    assert (files.exists(path), files.exists(f"{path}-moved")) == (False, True)


def test_an_object_that_changes_while_it_is_read_is_refused(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "_READ_BYTES", 4)
    files, path = S3FileSystem(client=client), f"s3://{BUCKET}/changed"
    write(files, path, b"0123456789")
    with files.create_stream(path, "rb") as file:
        assert file.read(4) == b"0123"
        write(files, path, b"abcdefghij")
        with pytest.raises(OSError, match=f"{path} was written anew while it was read"):
            file.read(4)


def test_errors_that_a_retry_cannot_mend_are_not_retried(client: Any, service: Service) -> None:
    names = sent(client)
    with pytest.raises(ClientError, match=r"NoSuchBucket|AccessDenied"):
        write(S3FileSystem(client=client), "s3://there-is-none/key", b"x")
    assert names == ["PutObject"]
    stranger = service.client(credentials=Credentials(access_key_id="NOBODY", secret_access_key=USER.secret_access_key))
    names = sent(stranger)
    with pytest.raises(ClientError, match="403"):
        S3FileSystem(client=stranger).exists(f"s3://{BUCKET}/key")
    stranger.close()
    assert names == ["HeadObject"]


def test_a_multipart_upload_that_fails_leaves_no_parts(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "PART_BYTES", 5 * MIB)
    left = 2

    def fail_twice(request: Any, **_: Any) -> None:
        nonlocal left
        if left:
            left -= 1
            raise ConnectionError("said for this test")

    client.meta.events.register("before-send.s3.CompleteMultipartUpload", fail_twice)
    names = sent(client)
    write(S3FileSystem(client=client), f"s3://{BUCKET}/parts", bytes(6 * MIB))
    assert names.count("AbortMultipartUpload") == 2
    assert client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", []) == []
    assert client.head_object(Bucket=BUCKET, Key="parts")["ContentLength"] == 6 * MIB


def test_concurrent_readers_share_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    is_second, num_made = threading.Event(), 0

    def make(*_: Any) -> Any:
        nonlocal num_made
        num_made += 1
        if num_made > 1:
            is_second.set()
        is_second.wait(_ENTER_S)
        return object()

    monkeypatch.setattr(s3, "_client", make)
    files = S3FileSystem()
    threads = [threading.Thread(target=lambda: files._client) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert num_made == 1
