"""Transfers of agents with a real SeaweedFS, directly and through a faulty gateway."""

from __future__ import annotations

import datetime as dt
import hashlib
import io
import os
import random
import ssl
import subprocess
import tarfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from faulty_gateway import faulty_gateway
from weed_servers import KEYS, running_weed

from clary.agent.artifacts import upload_results
from clary.agent.channels import fetch_channel
from clary.base.errors import AgentError, Fault, ObjectStoreError
from clary.contract.agent_protocol import UploadRole
from clary.contract.launch_plan import Channel, Credentials, Endpoint, Output
from clary.contract.ml_tree import MlTree
from clary.contract.object_store import ObjectStore, parse_s3_uri
from clary.testing.launch_plans import make_hosts, make_plan
from clary.train.debugger.reading.s3_access import SignedBucket

MIB = 1 << 20


@pytest.fixture(scope="module")
def weed(tmp_path_factory):
    with running_weed(tmp_path_factory.mktemp("weed")) as running:
        yield running


@pytest.fixture
def store(weed):
    with ObjectStore(weed.endpoint) as client:
        yield client


@pytest.fixture
def folder(store, request):
    """A prefix used only by this test."""
    return f"{request.node.name[:60]}-{random.randrange(1 << 40):x}"


@contextmanager
def behind_gateway(weed, *, attempts: int = 5, timeout_s: float = 60.0, tls=None):
    """A gateway and a client that does not sleep between attempts."""
    with faulty_gateway(weed.endpoint.url, tls=tls) as gateway:
        endpoint = Endpoint(url=gateway.url, region="us-west-2", credentials=KEYS)
        with ObjectStore(endpoint, attempts=attempts, timeout_s=timeout_s, sleep=lambda _: None) as client:
            yield gateway, client


def test_objects_with_keys_of_every_kind_survive_the_round_trip(store, folder):
    names = ["a b+c", "ünï/codé", "p%41x", "q?x=1#f", "e&<>'\".txt", "~t", "sp ace/x", "日本語", "s=a,b;c:d@e$f!g*(h)"]
    for name in names:
        store.put_bytes("data", f"{folder}/{name}", name.encode(), metadata={"origin": "test"})
    listed = {info.key.removeprefix(f"{folder}/"): info for info in store.list_objects("data", f"{folder}/")}
    assert set(listed) == set(names)
    for name in names:
        facts = store.head("data", f"{folder}/{name}")
        assert facts is not None
        assert facts.size_bytes == listed[name].size_bytes == len(name.encode())
        assert facts.metadata["origin"] == "test"
        assert store.get_bytes("data", f"{folder}/{name}", max_bytes=100) == name.encode()


def test_a_trial_without_boto3_lists_and_reads_objects_of_agents(weed, store, folder):
    """The debugger's bucket over the same client, through a gateway that resets connections."""
    names = ["a b+c", "ünï", "日本語", "q?x=1#f"]
    for name in names:
        store.put_bytes("data", f"{folder}/{name}", bytes(1000) + name.encode())
        store.put_bytes("data", f"{folder}/below {name}/x", b"")
    keys = {"AWS_ACCESS_KEY_ID": KEYS.access_key_id, "AWS_SECRET_ACCESS_KEY": KEYS.secret_access_key}
    with faulty_gateway(weed.endpoint.url) as gateway:
        bucket = SignedBucket("data", endpoint=gateway.url, environment={**keys, "AWS_REGION": "us-west-2"})
        gateway.fail("reset", times=2)
        found = bucket.list(f"{folder}/")
        assert {info.key for info in found.objects} == {f"{folder}/{name}" for name in names}
        assert set(found.folders) == {f"{folder}/below {name}/" for name in names}
        assert [info.key for info in bucket.list(f"{folder}/", f"{folder}/q").objects] == [
            f"{folder}/{name}" for name in ("q?x=1#f", "ünï", "日本語")
        ]
        for name in names:
            content = name.encode()
            assert bucket.read(f"{folder}/{name}", 1000, len(content)) == content
            assert bucket.read(f"{folder}/{name}", 999, 5000) == b"\0" + content
        with pytest.raises(FileNotFoundError, match="there is no such object"):
            bucket.read(f"{folder}/gone", 0, 1)
        bucket.close()


def test_listing_of_more_than_one_page_is_complete(store, folder):
    with ObjectStore(store._exchange._endpoint) as other:
        threads = [
            threading.Thread(
                target=lambda start=start: [
                    other.put_bytes("data", f"{folder}/{number:04}", b"") for number in range(start, 1050, 8)
                ]
            )
            for start in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    keys = [info.key for info in store.list_objects("data", f"{folder}/")]
    assert keys == [f"{folder}/{number:04}" for number in range(1050)]


@pytest.mark.parametrize("size", [0, 1, 16 * MIB - 1, 16 * MIB, 40 * MIB + 3])
def test_streams_of_every_size_survive_the_round_trip(store, folder, tmp_path, size):
    blob = random.Random(size).randbytes(size)
    assert store.upload_stream("data", f"{folder}/stream", io.BytesIO(blob)) == size
    assert store.download("data", f"{folder}/stream", tmp_path / "once") == size
    assert (tmp_path / "once").read_bytes() == blob
    assert store.download("data", f"{folder}/stream", tmp_path / "again", size_bytes=size) == size
    with store.open_reader("data", f"{folder}/stream") as reader:
        assert hashlib.sha256(reader.read()).digest() == hashlib.sha256(blob).digest()
    assert sorted(os.listdir(tmp_path)) == ["again", "once"]


def test_refusals_are_not_retried_and_give_the_reason(store, weed):
    with pytest.raises(ObjectStoreError, match=r"404 NoSuchKey.*Not retried") as caught:
        store.get_bytes("data", "missing", max_bytes=1)
    assert caught.value.fault is Fault.USER
    assert caught.value.details == {
        "bucket": "data",
        "key": "missing",
        "status": 404,
        "code": "NoSuchKey",
        "attempts": 1,
    }
    with pytest.raises(ObjectStoreError, match="NoSuchBucket"):
        list(store.list_objects("no-such-bucket", ""))
    assert store.head("data", "missing") is None
    store.delete("data", "missing")
    stranger = Credentials(access_key_id=KEYS.access_key_id, secret_access_key="wrong")
    with ObjectStore(Endpoint(url=weed.endpoint.url, region="us-west-2", credentials=stranger)) as other:
        with pytest.raises(ObjectStoreError, match=r"403 SignatureDoesNotMatch.*access key") as caught:
            other.put_bytes("data", "x", bytes(20 * MIB))
        assert caught.value.details["attempts"] == 1
        with pytest.raises(ObjectStoreError, match="403"):
            other.head("data", "x")


def test_download_of_another_size_than_promised_is_refused(store, folder, tmp_path):
    store.put_bytes("data", folder, b"12345")
    with pytest.raises(ObjectStoreError, match="expected 4 bytes"):
        store.download("data", folder, tmp_path / "x", size_bytes=4)
    assert os.listdir(tmp_path) == []


def test_requests_to_a_busy_store_are_retried_up_to_a_limit(weed, folder):
    with behind_gateway(weed, attempts=3) as (gateway, client):
        gateway.fail("busy", times=2)
        client.put_bytes("data", folder, b"x")
        gateway.fail("busy", times=9)
        with pytest.raises(ObjectStoreError, match="503 SlowDown") as caught:
            client.get_bytes("data", folder, max_bytes=9)
        assert caught.value.details["attempts"] == 3
        assert caught.value.retryable
        assert caught.value.fault is Fault.INFRASTRUCTURE


def test_requests_on_dropped_connections_are_retried(weed, folder):
    with behind_gateway(weed) as (gateway, client):
        client.put_bytes("data", folder, b"x")
        gateway.fail("drop", times=3)
        assert client.get_bytes("data", folder, max_bytes=9) == b"x"


@pytest.mark.parametrize("size", [1000, 20 * MIB])
def test_body_damaged_on_its_way_is_refused_and_sent_again(weed, folder, size):
    blob = random.Random(1).randbytes(size)
    with behind_gateway(weed) as (gateway, client):
        gateway.fail("flip", lambda method, path: method == "PUT")
        client.upload_stream("data", folder, io.BytesIO(blob))
        assert client.get_bytes("data", folder, max_bytes=size) == blob
        gateway.fail("flip", lambda method, path: method == "PUT", times=99)
        with pytest.raises(ObjectStoreError, match="BadDigest"):
            client.upload_stream("data", f"{folder}-bad", io.BytesIO(blob))
        assert client.head("data", f"{folder}-bad") is None


def test_reader_resumes_where_the_connection_broke(weed, folder):
    blob = random.Random(2).randbytes(3 * MIB)
    with behind_gateway(weed) as (gateway, client):
        client.put_bytes("data", folder, blob)
        gateway.requests.clear()
        gateway.fail("cut", times=1, after_bytes=MIB)
        gateway.fail("cut", times=1, after_bytes=100)
        with client.open_reader("data", folder) as reader:
            assert reader.read() == blob
        assert [ranged for _, _, ranged in gateway.requests] == [
            "",
            f"bytes={MIB}-",
            f"bytes={MIB + 100}-",
        ]


def test_reader_refuses_to_mix_two_versions_of_an_object(weed, folder):
    with behind_gateway(weed, attempts=2) as (gateway, client):
        client.put_bytes("data", folder, b"1" * 3 * MIB)
        gateway.fail("cut", after_bytes=2 * MIB)
        with client.open_reader("data", folder) as reader:
            assert reader.read(10) == b"1" * 10
            client.put_bytes("data", folder, b"2" * 3 * MIB)
            with pytest.raises(ObjectStoreError, match="412"):
                reader.read()


@pytest.mark.parametrize("size", [MIB, 40 * MIB])
def test_download_survives_broken_connections(weed, folder, tmp_path, size):
    blob = random.Random(3).randbytes(size)
    with behind_gateway(weed) as (gateway, client):
        client.upload_stream("data", folder, io.BytesIO(blob))
        gateway.fail("cut", lambda method, path: method == "GET", times=3, after_bytes=1000)
        client.download("data", folder, tmp_path / "x")
        assert (tmp_path / "x").read_bytes() == blob


def test_download_that_never_succeeds_leaves_no_file(weed, folder, tmp_path):
    with behind_gateway(weed, attempts=2) as (gateway, client):
        client.upload_stream("data", folder, io.BytesIO(bytes(40 * MIB)))
        gateway.fail("cut", lambda method, path: method == "GET", times=99, after_bytes=1000)
        with pytest.raises(ObjectStoreError, match="broke"):
            client.download("data", folder, tmp_path / "x")
        assert os.listdir(tmp_path) == []


def test_lost_response_to_a_completed_upload_counts_as_success(weed, folder):
    blob = random.Random(4).randbytes(20 * MIB)
    with behind_gateway(weed) as (gateway, client):
        gateway.fail("lose_answer", lambda method, path: method == "POST" and "uploadId" in path)
        assert client.upload_stream("data", folder, io.BytesIO(blob)) == len(blob)
        assert client.get_bytes("data", folder, max_bytes=len(blob)) == blob


def test_failed_upload_is_aborted_and_stores_no_object(weed, folder):
    class Breaking(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() > 20 * MIB:
                raise AgentError("the disk has a hole")
            return super().read(size)

    with behind_gateway(weed) as (gateway, client):
        with pytest.raises(AgentError, match="hole"):
            client.upload_stream("data", folder, Breaking(bytes(40 * MIB)))
        assert client.head("data", folder) is None
        assert [method for method, path, _ in gateway.requests if method == "DELETE" and "uploadId" in path] == [
            "DELETE"
        ]


def test_closing_the_client_aborts_a_hanging_transfer(weed, folder, tmp_path):
    with behind_gateway(weed) as (gateway, client):
        client.upload_stream("data", folder, io.BytesIO(bytes(40 * MIB)))
        gateway.fail("stall", lambda method, path: method == "GET", times=99, after_bytes=1000)
        outcome = []

        def fetch() -> None:
            try:
                client.download("data", folder, tmp_path / "x")
            except ObjectStoreError as error:
                outcome.append(error)

        thread = threading.Thread(target=fetch)
        thread.start()
        deadline = time.monotonic() + 20
        while sum(method == "GET" for method, _, _ in gateway.requests) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        started = time.monotonic()
        client.close()
        thread.join(20)
        assert time.monotonic() - started < 10
        assert "broken off" in outcome[0].message
        assert os.listdir(tmp_path) == []
        with pytest.raises(ObjectStoreError, match="broken off"):
            client.head("data", folder)


def test_request_to_a_silent_store_fails_after_the_timeout(weed, folder):
    with behind_gateway(weed, attempts=2, timeout_s=0.3) as (gateway, client):
        client.put_bytes("data", folder, bytes(5000))
        gateway.fail("stall", times=99, after_bytes=100)
        with pytest.raises(ObjectStoreError, match=r"TimeoutError|timed out"):
            client.get_bytes("data", folder, max_bytes=9000)


def test_https_endpoints_are_verified_and_used(weed, folder, tmp_path, monkeypatch):
    certificate, key = make_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with (
        behind_gateway(weed, attempts=1, tls=context) as (_, stranger),
        pytest.raises(ObjectStoreError, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        stranger.put_bytes("data", folder, b"x")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with behind_gateway(weed, tls=context) as (gateway, client):
        assert gateway.url.startswith("https://")
        blob = random.Random(5).randbytes(20 * MIB)
        client.upload_stream("data", folder, io.BytesIO(blob))
        assert client.get_bytes("data", folder, max_bytes=len(blob)) == blob
        monkeypatch.delenv("SSL_CERT_FILE")
        endpoint = Endpoint(url=gateway.url, region="us-west-2", credentials=KEYS)
        with ObjectStore(endpoint, attempts=1, authorities=str(certificate)) as trusting:
            assert trusting.get_range("data", folder, 7, 100) == blob[7:107]


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Write a self-signed certificate for localhost, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder / "cert.pem", folder / "key.pem"


@pytest.mark.long
def test_transfers_survive_a_kill_and_restart_of_the_store(tmp_path):
    blob = random.Random(6).randbytes(48 * MIB)
    (tmp_path / "weed").mkdir()
    with running_weed(tmp_path / "weed") as weed, ObjectStore(weed.endpoint, attempts=8) as store:
        store.upload_stream("data", "blob", io.BytesIO(blob))
        reader = store.open_reader("data", "blob")
        start = reader.read(MIB)
        weed.kill()
        restart = threading.Timer(1.0, weed.start)
        restart.start()
        try:
            with reader:
                assert start + reader.read() == blob
            store.download("data", "blob", tmp_path / "x")
            assert (tmp_path / "x").read_bytes() == blob
        finally:
            restart.join()


def test_channels_are_fetched_as_they_are_stored(store, folder, tmp_path):
    big = random.Random(7).randbytes(40 * MIB)
    contents = {"a.csv": b"1,2", "sub/b.bin": big, "sub/ü": b"", **{f"many/{n}": bytes([n]) for n in range(50)}}
    for name, data in contents.items():
        store.upload_stream("data", f"{folder}/in/{name}", io.BytesIO(data))
    tree = MlTree(tmp_path / "ml")
    channel = Channel(name="train", s3_uri=f"s3://data/{folder}/in")
    facts = fetch_channel(channel, store=store, tree=tree, host_index=0, num_hosts=1)
    root = tree.channel("train")
    got = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert got == contents
    assert facts.size_bytes == sum(map(len, contents.values()))
    missing = Channel(name="train", s3_uri=f"s3://data/{folder}/none")
    with pytest.raises(AgentError, match=r"^No S3 objects found under S3 URL"):
        fetch_channel(missing, store=store, tree=tree, host_index=0, num_hosts=1)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
@pytest.mark.parametrize("promised", [True, False], ids=["size-known", "size-unknown"])
def test_full_disk_is_named_and_leaves_no_half_file(store, folder, tmp_path, promised):
    store.upload_stream("data", f"{folder}/in/big", io.BytesIO(random.Random(8).randbytes(6 * MIB)))
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], check=False)
    if mounted.returncode != 0:
        pytest.skip("this root may not mount")
    try:
        tree = MlTree(disk)
        compression = "None" if promised else "Gzip"
        if not promised:
            import gzip

            packed = gzip.compress(bytes(6 * MIB))
            store.put_bytes("data", f"{folder}/in/big", packed)
        channel = Channel(name="train", s3_uri=f"s3://data/{folder}/in", compression=compression)
        with pytest.raises(AgentError, match=r"No space left on device.*bytes free") as caught:
            fetch_channel(channel, store=store, tree=tree, host_index=0, num_hosts=1)
        assert caught.value.fault is Fault.USER
        assert [path for path in disk.rglob("*") if path.is_file()] == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def make_job(folder: str, tmp_path: Path, *, is_compressed: bool = True):
    base = f"s3://data/{folder}/job-1/output"
    output = Output(
        s3_output_path=f"s3://data/{folder}",
        model_uri=f"{base}/model.tar.gz" if is_compressed else f"{base}/model/",
        output_uri=f"{base}/output.tar.gz" if is_compressed else f"{base}/data/",
        is_compressed=is_compressed,
    )
    plan = make_plan(hosts=make_hosts(2), output=output)
    trees = {host.name: MlTree(tmp_path / host.name) for host in plan.hosts}
    for tree in trees.values():
        tree.model.mkdir(parents=True)
        tree.output_data.mkdir(parents=True)
    return plan, trees


def read_object(store: ObjectStore, uri: str) -> bytes:
    place = parse_s3_uri(uri)
    return store.get_bytes(place.bucket, place.key, max_bytes=1 << 30)


@pytest.mark.parametrize("is_compressed", [True, False], ids=["archive", "loose"])
def test_results_of_two_hosts_are_merged_and_the_merge_can_be_repeated(store, folder, tmp_path, is_compressed):
    plan, trees = make_job(folder, tmp_path, is_compressed=is_compressed)
    shards = {name: random.Random(name).randbytes(24 * MIB) for name in trees}
    for name, tree in trees.items():
        (tree.model / f"shard-{name}.bin").write_bytes(shards[name])
        (tree.model / "config.json").write_text("{}")
        (tree.output_data / "who").write_text(name)

    def act(role, host, staged=()):
        return upload_results(role, plan=plan, host=host, tree=trees[host], store=store, staged=staged)

    staged = act(UploadRole.STAGE, "algo-2").staged
    assert [part.num_files for part in staged] == [2, 1]
    facts = act(UploadRole.LEAD, "algo-1", staged)
    assert facts.uploaded == (plan.output.model_uri, plan.output.output_uri)
    assert "who (of algo-1, not algo-2)" in facts.notes[0]
    expected = {"config.json": b"{}", **{f"shard-{name}.bin": data for name, data in shards.items()}}
    keys = [info.key for info in store.list_objects("data", f"{folder}/")]
    assert not any("staging" in key for key in keys)
    if is_compressed:
        with tarfile.open(fileobj=io.BytesIO(read_object(store, plan.output.model_uri))) as tar:
            got = {info.name: tar.extractfile(info).read() for info in tar.getmembers()}
        assert got == expected
        assert len(keys) == 2
    else:
        for name, data in expected.items():
            assert read_object(store, f"{plan.output.model_uri}{name}") == data
        assert read_object(store, f"{plan.output.output_uri}who") == b"algo-1"
        assert len(keys) == 4
    again = act(UploadRole.LEAD, "algo-1", staged)
    assert again.uploaded == facts.uploaded
    assert [info.key for info in store.list_objects("data", f"{folder}/")] == keys


def test_upload_through_a_bad_network_is_whole(weed, folder, tmp_path):
    plan, trees = make_job(folder, tmp_path)
    blob = random.Random(9).randbytes(50 * MIB)
    (trees["algo-1"].model / "m").write_bytes(blob)
    with behind_gateway(weed) as (gateway, client):
        gateway.fail("flip", lambda method, path: "partNumber=2&" in path)
        gateway.fail("drop", lambda method, path: "partNumber=1&" in path)
        gateway.fail("busy", lambda method, path: method == "POST", times=2)
        gateway.fail("lose_answer", lambda method, path: method == "POST" and "uploadId" in path)
        upload_results(UploadRole.LEAD, plan=plan, host="algo-1", tree=trees["algo-1"], store=client)
        with tarfile.open(fileobj=io.BytesIO(read_object(client, plan.output.model_uri))) as tar:
            assert tar.extractfile("m").read() == blob
