"""Another user of this machine, without a key, cannot reach any object of the embedded store."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path

import pytest

from clary.contract.launch_plan import Credentials
from clary.control.objects.seaweed import EmbeddedStore
from clary.control.objects.store_client import StoreClient
from clary.control.objects.weed_process import GRPC_OFFSET, StoreRecord

STORE = Credentials(access_key_id="CLARYSTORE", secret_access_key="store-secret")
OTHER_UID = 12345
SECRET = b"content of somebody's object"

# Runs as another user: sends every kind of unauthorised request to every port, and prints the responses.
INTRUDER = r"""
import glob, http.client, json, os, socket, ssl, sys
ports = json.loads(sys.argv[1])
context = ssl.create_default_context(); context.check_hostname = False; context.verify_mode = ssl.CERT_NONE
answers = []
OBJECTS = ["/buckets/clary/kept", "/clary/kept", *(f"/{volume},01637037d6" for volume in range(1, 9))]
ATTEMPTS = [(method, path) for path in OBJECTS for method in ("GET", "PUT", "POST", "DELETE")]
ATTEMPTS += [("GET", "/" + path) for path in ("", "buckets/?limit=5", "dir/status", "dir/assign", "submit", "clary",
             "dir/lookup?volumeId=1", "col/delete?collection=clary", "vol/grow?count=1", "vol/vacuum")]
for name, port in ports.items():
    for secure in (False, True):
        for method, path in ATTEMPTS:
            try:
                if secure:
                    made = http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=context)
                else:
                    made = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                made.request(method, path, body=b"tampered" if method in ("PUT", "POST") else None)
                answer = made.getresponse()
                answers.append([name, secure, method, path, answer.status, answer.read(2000).decode("latin-1")])
            except (OSError, http.client.HTTPException) as error:
                answers.append([name, secure, method, path, 0, type(error).__name__])
            finally:
                made.close()
for path in glob.glob("/tmp/seaweedfs-*"):
    with socket.socket(socket.AF_UNIX) as made:
        try:
            made.connect(path); answers.append(["socket", False, "CONNECT", path, 200, "connected"])
        except OSError as error:
            answers.append(["socket", False, "CONNECT", path, 0, type(error).__name__])
print(json.dumps(answers))
"""
REFUSALS = frozenset({0, 400, 401, 403, 404, 405})  # 0: no HTTP response


def as_another_user(ports: dict[str, int]) -> list[list[object]]:
    done = subprocess.run(
        [
            "setpriv",
            f"--reuid={OTHER_UID}",
            f"--regid={OTHER_UID}",
            "--clear-groups",
            "/usr/bin/python3",
            "-c",
            INTRUDER,
            json.dumps(ports),
        ],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
        cwd="/",
    )
    return json.loads(done.stdout)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="another user's programs are started by root")
async def test_another_user_can_neither_read_nor_change_an_object(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path, credentials=STORE)
    endpoint = await store.start()
    try:
        async with StoreClient(endpoint) as client:
            assert (await client.request("PUT", "clary", key="kept", body=SECRET)).status == 200
        record = StoreRecord.read(tmp_path / "run" / "seaweed.json")
        assert record is not None
        ports = record.ports | {f"{name} grpc": port + GRPC_OFFSET for name, port in record.ports.items()}
        answers = as_another_user(ports)
        assert not [answer for answer in answers if answer[4] not in REFUSALS]
        assert not [answer for answer in answers if SECRET.decode() in str(answer[5])]
        async with StoreClient(endpoint) as client:
            assert (await client.request("GET", "clary", key="kept")).body == SECRET
    finally:
        await store.stop()


async def test_only_the_owner_can_read_the_keys_of_the_store(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path, credentials=STORE)
    await store.start()
    try:
        files = list((tmp_path / "objects" / ".seaweedfs").iterdir())
        assert len(files) == 3
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
        text = (tmp_path / "objects" / ".seaweedfs" / "security.toml").read_text()
        assert 'key = ""' not in text
    finally:
        await store.stop()


async def test_a_store_whose_ports_are_open_is_not_adopted(tmp_path: Path) -> None:
    """A service of an earlier version has left its store running; the store is replaced, on the same ports."""
    first = EmbeddedStore(tmp_path, credentials=STORE)
    await first.start()
    record_path = tmp_path / "run" / "seaweed.json"
    record = StoreRecord.read(record_path)
    assert record is not None
    assert record.process is not None
    first._watcher.cancel()  # as if the first service was killed
    first._release_lock()
    document = json.loads(record_path.read_text())
    del document["is_secured"]
    record_path.write_text(json.dumps(document))
    second = EmbeddedStore(tmp_path, credentials=STORE)
    endpoint = await second.start()
    try:
        assert second.process != record.process
        assert endpoint.url.endswith(f":{record.ports['s3']}")
        assert not record.process.is_alive()
        first._child.wait(5)
    finally:
        await second.stop()
