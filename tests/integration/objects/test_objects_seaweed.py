"""Starts, crashes, adoption and stops of the embedded store, a real SeaweedFS process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from clary.base.errors import ObjectStoreError
from clary.base.processes import ProcessId
from clary.contract.launch_plan import Credentials, Endpoint
from clary.control.objects import seaweed, weed_process
from clary.control.objects.seaweed import EmbeddedStore
from clary.control.objects.store_client import StoreClient
from clary.control.objects.weed_process import StoreRecord

STORE = Credentials(access_key_id="CLARYSTORE", secret_access_key="store-secret")

# A service to be killed without warning: it starts the store, prints its address, and waits.
SERVICE = """
import asyncio, json, sys
from pathlib import Path
from clary.contract.launch_plan import Credentials
from clary.control.objects.seaweed import EmbeddedStore

async def main():
    credentials = Credentials(access_key_id="CLARYSTORE", secret_access_key="store-secret")
    store = EmbeddedStore(Path(sys.argv[1]), credentials=credentials)
    endpoint = await store.start()
    print(json.dumps({"url": endpoint.url, "pid": store.process.pid}), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


MAX_WAKES_A_SECOND = 100


def num_wakes(process: ProcessId | None) -> int:
    """Return how many times the threads of a process have been woken so far."""
    assert process is not None
    texts = [path.read_text() for path in Path(f"/proc/{process.pid}/task").glob("*/status")]
    return sum(int(text.partition("voluntary_ctxt_switches:")[2].split()[0]) for text in texts)


def make_store(home: Path) -> EmbeddedStore:
    return EmbeddedStore(home, credentials=STORE)


@contextlib.asynccontextmanager
async def running(home: Path) -> AsyncIterator[EmbeddedStore]:
    store = make_store(home)
    await store.start()
    try:
        yield store
    finally:
        await store.stop()


async def put(endpoint: Endpoint, key: str, content: bytes) -> None:
    async with StoreClient(endpoint) as client:
        assert (await client.request("PUT", "clary", key=key, body=content)).status == 200


async def get(endpoint: Endpoint, key: str) -> bytes:
    async with StoreClient(endpoint) as client:
        answer = await client.request("GET", "clary", key=key)
        assert answer.status == 200
        return answer.body


async def until(condition: object, timeout_s: float = 20.0) -> None:
    assert callable(condition)
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.05)


@contextlib.contextmanager
def killable_service(home: Path) -> object:
    """Run SERVICE; after the test neither it nor its store is left."""
    process = subprocess.Popen([sys.executable, "-c", SERVICE, str(home)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()
        record = StoreRecord.read(home / "run" / "seaweed.json")
        if record is not None and record.process is not None:
            weed_process.terminate(record.process, grace_s=5)


async def test_store_serves_after_start_and_leaves_no_process_after_stop(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    endpoint = await store.start()
    process = store.process
    assert process is not None
    assert store.is_ready
    await put(endpoint, "k", b"v")
    assert os.getsid(process.pid) == process.pid, "Ctrl-C of the terminal would reach the store"
    command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
    assert b"store-secret" not in command
    assert b"-master.telemetry=false" in command
    assert b"store-secret" not in (tmp_path / "run" / "seaweed.log").read_bytes()
    port = urlsplit(endpoint.url).port
    grpc_port = port + weed_process.GRPC_OFFSET
    own_socket = tmp_path / "objects" / "s3.sock"
    assert list(Path("/tmp").glob(f"seaweedfs-s3-grpc-{grpc_port}.sock"))
    assert own_socket.is_socket()
    await store.stop()
    assert not [path for number in (port, grpc_port) for path in Path("/tmp").glob(f"seaweedfs-*{number}.sock")]
    assert not own_socket.exists()
    assert not list(Path(tempfile.gettempdir()).glob(f"weed.*.{process.pid}")), "logs that nobody removes"
    assert not process.is_alive()
    assert not store.is_ready
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        pass


async def test_an_idle_store_wakes_only_for_its_own_timers(tmp_path: Path) -> None:
    # Measured: 130 wakes per second with its crash reporter enabled, 57 to 84 without.
    async with running(tmp_path) as store:
        rates = []
        while len(rates) < 6 and min(rates, default=math.inf) >= MAX_WAKES_A_SECOND:  # the start still does work
            before, began_s = num_wakes(store.process), time.monotonic()
            await asyncio.sleep(2)
            rates.append((num_wakes(store.process) - before) / (time.monotonic() - began_s))
        assert min(rates) < MAX_WAKES_A_SECOND, rates
    assert "sentry.Init: [Sentry] DsnParseError" in (tmp_path / "run" / "seaweed.log").read_text()


async def test_many_buckets_can_be_created_and_written(tmp_path: Path) -> None:
    # By default `weed mini` allows about as many buckets as the disk has free GiB.
    async with running(tmp_path) as store:
        async with StoreClient(store.endpoint) as client:
            for index in range(120):
                await client.ensure_bucket(f"bucket-{index}")
            answers = [await client.request("PUT", f"bucket-{index}", key="k", body=b"v") for index in (0, 60, 119)]
        assert [answer.status for answer in answers] == [200, 200, 200]
        assert b"-volume.max=10000" in Path(f"/proc/{store.process.pid}/cmdline").read_bytes()


async def test_the_store_listens_only_on_loopback(tmp_path: Path) -> None:
    async with running(tmp_path) as store:
        inodes = set()
        for entry in Path(f"/proc/{store.process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                inodes.add(os.readlink(entry))
        listening = []
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                listening.append(fields[1])
        assert len(listening) >= 5
        assert {address.partition(":")[0] for address in listening} == {"0100007F"}
        for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]:
            fields = line.split()
            assert not (fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes)


async def test_killed_store_is_started_again_on_the_same_port_with_its_data(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as store:
        endpoint, first = store.endpoint, store.process
        await put(endpoint, "kept", b"before the kill")
        os.kill(first.pid, signal.SIGKILL)
        with caplog.at_level(logging.ERROR):
            await until(lambda: store.process != first and store.is_ready)
        assert f"process {first.pid} ended with code -9; starting it again" in caplog.text
        assert store.endpoint == endpoint
        assert await get(endpoint, "kept") == b"before the kill"


async def test_store_that_dies_at_every_start_is_restarted_with_growing_pauses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seaweed, "FIRST_BACKOFF_S", 0.1)
    async with running(tmp_path) as store:
        first = store.process
        monkeypatch.setattr(weed_process, "find_program", lambda: "/bin/false")
        with caplog.at_level(logging.ERROR):
            os.kill(first.pid, signal.SIGKILL)
            await until(lambda: "again in 0.4 s" in caplog.text)
        assert "again in 0.1 s" in caplog.text
        assert "again in 0.2 s" in caplog.text
        monkeypatch.undo()
        await until(lambda: store.is_ready)
        assert store.process != first


async def test_manual_restart_keeps_data_and_endpoint(tmp_path: Path) -> None:
    async with running(tmp_path) as store:
        endpoint = store.endpoint
        await put(endpoint, "kept", b"first run")
    async with running(tmp_path) as store:
        assert store.endpoint == endpoint
        assert await get(endpoint, "kept") == b"first run"


@pytest.mark.long(10)
async def test_port_taken_meanwhile_is_replaced_and_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path) as store:
        endpoint = store.endpoint
        await put(endpoint, "kept", b"first run")
    with socket.socket() as intruder:
        intruder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        intruder.bind(("127.0.0.1", urlsplit(endpoint.url).port))
        intruder.listen()
        with caplog.at_level(logging.WARNING):
            async with running(tmp_path) as store:
                assert store.endpoint.url != endpoint.url
                assert await get(store.endpoint, "kept") == b"first run"
    assert "is taken by another program" in caplog.text


@pytest.mark.parametrize("server", ["s3", "filer"])
@pytest.mark.long
async def test_a_port_that_is_taken_between_choosing_and_binding_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, server: str
) -> None:
    monkeypatch.setattr(seaweed, "PORT_WAIT_S", 0.2)
    choose = weed_process.choose_ports
    with socket.socket() as other:
        chosen = choose()
        other.bind((weed_process.HOST, chosen[server]))
        other.listen()
        choices = iter([chosen])
        monkeypatch.setattr(weed_process, "choose_ports", lambda: next(choices, None) or choose())
        async with running(tmp_path) as store:
            await put(store.endpoint, "key", b"content")
            record = StoreRecord.read(tmp_path / "run/seaweed.json")
            assert record is not None
            assert record.ports[server] != chosen[server]
    assert f"port {chosen[server]} ({server}) was taken before the store listened on it" in caplog.text


async def test_ports_that_are_always_taken_end_the_start_after_a_few_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seaweed, "PORT_WAIT_S", 0.1)
    chosen, calls = weed_process.choose_ports(), []
    with socket.socket() as other:
        other.bind((weed_process.HOST, chosen["s3"]))
        other.listen()
        monkeypatch.setattr(weed_process, "choose_ports", lambda: calls.append(1) or chosen)
        with pytest.raises(ObjectStoreError, match="Port allocation failed") as refused:
            await make_store(tmp_path).start()
    assert refused.value.retryable
    assert len(calls) == seaweed.MAX_PORT_CHOICES


async def test_data_survives_kill_of_service_and_store(tmp_path: Path) -> None:
    with killable_service(tmp_path) as (service, said):
        endpoint = Endpoint(url=said["url"], region="us-west-2", credentials=STORE)
        for index in range(30):
            await put(endpoint, f"acknowledged/{index}", b"%d" % index * 1000)
        os.kill(service.pid, signal.SIGKILL)
        os.kill(said["pid"], signal.SIGKILL)
        service.wait(10)
        async with running(tmp_path) as store:
            assert store.endpoint.url == said["url"]
            for index in range(30):
                assert await get(store.endpoint, f"acknowledged/{index}") == b"%d" % index * 1000


async def test_store_of_a_killed_service_is_adopted_watched_and_stopped(tmp_path: Path) -> None:
    with killable_service(tmp_path) as (service, said):
        os.kill(service.pid, signal.SIGKILL)
        service.wait(10)
        store = make_store(tmp_path)
        endpoint = await store.start()
        try:
            assert (store.process.pid, endpoint.url) == (said["pid"], said["url"])
            os.kill(said["pid"], signal.SIGKILL)
            await until(lambda: store.is_ready and store.process.pid != said["pid"])
        finally:
            await store.stop()
        record = StoreRecord.read(tmp_path / "run" / "seaweed.json")
        assert record is not None
        assert record.process is None


async def test_adopted_store_that_does_not_answer_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seaweed, "ADOPT_TIMEOUT_S", 0.5)
    monkeypatch.setattr(seaweed, "STOP_GRACE_S", 0.5)
    with killable_service(tmp_path) as (service, said):
        os.kill(service.pid, signal.SIGKILL)
        service.wait(10)
        os.kill(said["pid"], signal.SIGSTOP)
        async with running(tmp_path) as store:
            assert store.process.pid != said["pid"]
            assert store.endpoint.url == said["url"]
            assert ProcessId.of(said["pid"]) is None


async def test_second_service_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as store:
        with pytest.raises(ObjectStoreError, match=r"another service uses .*clary down"):
            await make_store(tmp_path).start()
        assert store.process.is_alive()


async def test_process_with_a_reused_pid_is_not_killed(tmp_path: Path) -> None:
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        identity = ProcessId.of(bystander.pid)
        assert identity is not None
        stale = ProcessId(identity.pid, str(int(identity.started) - 1))
        StoreRecord(ports=weed_process.choose_ports(), process=stale).write(tmp_path / "run" / "seaweed.json")
        async with running(tmp_path) as store:
            assert store.process.pid != bystander.pid
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait(10)


async def test_failed_start_gives_the_end_of_the_log_and_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "weed"
    program.write_text("#!/bin/sh\necho disk is on fire\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(weed_process, "find_program", lambda: str(program))
    store = make_store(tmp_path)
    with pytest.raises(ObjectStoreError, match=r"(?s)weed ended after .*disk is on fire"):
        await store.start()
    assert store.process is None


async def test_start_that_hangs_ends_at_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "weed"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(weed_process, "find_program", lambda: str(program))
    store = EmbeddedStore(tmp_path, credentials=STORE, start_silence_s=0.5)
    started_at = time.monotonic()
    with pytest.raises(ObjectStoreError, match="did not serve objects"):
        await store.start()
    assert time.monotonic() - started_at < 5
    assert store.process is None


@pytest.mark.parametrize("damage", [lambda index: index + bytes(4096), lambda index: b""])
async def test_objects_are_there_after_a_power_cut_that_damaged_an_index(tmp_path: Path, damage: object) -> None:
    """The store writes data and index of a volume apart, and leaves it to the kernel when they reach the disk."""
    assert callable(damage)
    async with running(tmp_path) as store:
        await put(store.endpoint, "k", b"v" * 100_000)
        await put(store.endpoint, "gone", b"v")
        async with StoreClient(store.endpoint) as client:
            assert (await client.request("DELETE", "clary", key="gone")).status == 204
    (index,) = (tmp_path / "objects").glob("clary_*.idx")
    index.write_bytes(damage(index.read_bytes()))
    async with running(tmp_path) as store:
        assert await get(store.endpoint, "k") == b"v" * 100_000
        await put(store.endpoint, "new", b"n")
        async with StoreClient(store.endpoint) as client:
            assert (await client.request("GET", "clary", key="gone")).status == 404
    assert index.with_name(f"{index.name}.damaged").exists()
