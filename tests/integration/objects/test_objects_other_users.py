"""Another user of this machine, without a key, cannot reach any object of the embedded store."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clary.contract.launch_plan import Credentials
from clary.control.objects import weed_process
from clary.control.objects.seaweed import EmbeddedStore
from clary.control.objects.store_client import StoreClient
from clary.control.objects.weed_process import GRPC_OFFSET, StoreRecord

STORE = Credentials(access_key_id="CLARYSTORE", secret_access_key="store-secret")
OTHER_UID = 12345
OWN_UID = 54321  # of a service without root
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


@pytest.fixture
def home() -> Iterator[Path]:
    """A state folder of `OWN_UID`, below folders that this user may enter; short, for the paths of sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="clary-") as place:
        os.chmod(place, 0o711)
        (Path(place) / "home").mkdir(mode=0o700)
        os.chown(Path(place) / "home", OWN_UID, OWN_UID)
        yield Path(place) / "home"


@contextmanager
def without_root() -> Iterator[None]:
    """This process has the rights of `OWN_UID` meanwhile, and so have its new children."""
    os.setresuid(OWN_UID, OWN_UID, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


def names_of(ports: dict[str, int]) -> list[str]:
    """Return all names of sockets below /tmp that weed, or an earlier version of the service, has used for ports."""
    return [
        f"/tmp/seaweedfs-{name}-{port}.sock"
        for server, number in ports.items()
        for name, port in ((server, number), (f"{server}-grpc", number + GRPC_OFFSET))
    ]


def plant(path: str) -> None:
    Path(path).touch()
    os.chown(path, OTHER_UID, OTHER_UID)


def plant_full_folder(path: str) -> None:
    """Not even root can remove it with one call."""
    Path(path).mkdir()
    (Path(path) / "kept").touch()
    os.chown(path, OTHER_UID, OTHER_UID)


@contextmanager
def planted(ports: dict[str, int], act: Callable[[str], None] = plant) -> Iterator[None]:
    """Another user has files where weed makes its sockets; they are removed at the end."""
    names = names_of(ports)
    try:
        for name in names:
            act(name)
        yield
    finally:
        subprocess.run(["rm", "-rf", *names], check=True)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="another user's files are made by root")
@pytest.mark.parametrize("act", [plant, plant_full_folder])
async def test_files_of_another_user_in_place_of_sockets_do_not_keep_a_store_from_starting(
    home: Path, act: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    """The ports are no secret: weed's command line names them, and they are the same at every start."""
    with without_root():
        first = EmbeddedStore(home, credentials=STORE)
        before = await first.start()
        await first.stop()
    record = StoreRecord.read(home / "run" / "seaweed.json")
    assert record is not None
    with planted(record.ports, act), without_root():
        store = EmbeddedStore(home, credentials=STORE)
        async with asyncio.timeout(40):
            endpoint = await store.start()
        try:
            assert endpoint.url == before.url, "agents still use the old endpoint"
            async with StoreClient(endpoint) as client:
                assert (await client.request("PUT", "clary", key="kept", body=SECRET)).status == 200
        finally:
            await store.stop()
    assert "filer" in caplog.text
    assert "another user" in caplog.text


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="another user's files are made by root")
async def test_a_store_that_dies_starts_again_although_another_user_took_the_place_of_its_sockets(home: Path) -> None:
    with without_root():
        store = EmbeddedStore(home, credentials=STORE)
        endpoint = await store.start()
    try:
        record = StoreRecord.read(home / "run" / "seaweed.json")
        assert record is not None
        assert record.process is not None
        with without_root():
            assert await asyncio.to_thread(weed_process.terminate, record.process, grace_s=10)
            weed_process.remove_sockets(record.ports)
        with planted(record.ports), without_root():
            async with asyncio.timeout(40), StoreClient(endpoint) as client:
                while not (store.is_ready and store.process != record.process):
                    await asyncio.sleep(0.1)
                assert (await client.request("PUT", "clary", key="kept", body=SECRET)).status == 200
            await store.stop()
    finally:
        await store.stop()
    assert not [name for name in names_of(record.ports) if os.path.lexists(name)]


async def test_a_file_that_is_made_between_choosing_and_start_does_not_keep_a_store_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    choose, chosen = weed_process.choose_ports, weed_process.choose_ports()
    choices = iter([chosen])
    monkeypatch.setattr(weed_process, "choose_ports", lambda: next(choices, None) or choose())
    full = Path(f"/tmp/seaweedfs-master-grpc-{chosen['master'] + GRPC_OFFSET}.sock")
    full.mkdir()
    try:
        (full / "kept").touch()
        store = EmbeddedStore(tmp_path, credentials=STORE)
        async with asyncio.timeout(40):
            await store.start()
        await store.stop()
    finally:
        (full / "kept").unlink()
        full.rmdir()
    assert f"port {chosen['master']} (master) was taken before the store listened on it" in caplog.text


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="another user's files are made by root")
async def test_sockets_lie_where_no_other_user_can_make_files(home: Path) -> None:
    with without_root():
        store = EmbeddedStore(home, credentials=STORE)
        await store.start()
        try:
            record = StoreRecord.read(home / "run" / "seaweed.json")
            assert record is not None
            made = [name for name in names_of(record.ports) if os.path.lexists(name)]
            assert all("-grpc-" in name for name in made)
        finally:
            await store.stop()
        assert not list((home / "objects").glob("*.sock"))


def test_a_socket_that_cannot_be_removed_is_told_and_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(weed_process, "SOCKET_PREFIX", f"{tmp_path}/weed-")
    ports = {name: number for number, name in enumerate(weed_process.PORT_NAMES, start=20000)}
    full, *others = weed_process.socket_paths(ports)
    Path(full).mkdir()
    (Path(full) / "kept").touch()
    for path in others:
        Path(path).touch()
    weed_process.remove_sockets(ports)
    assert full in caplog.text
    assert [path for path in weed_process.socket_paths(ports) if os.path.lexists(path)] == [full]
