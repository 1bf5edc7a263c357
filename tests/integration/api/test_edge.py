"""Attacks on the service's port by clients without a key: others still get responses, and memory stays bounded."""

import asyncio
import contextlib
import http.client
import json
import os
import socket
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import boto3
import pytest
from aiohttp import web
from boto3_clients import Clients, job_request, log_of, raw_request, unique, wait
from botocore.config import Config
from program_jobs import run, script_request, start
from running_service import start_service
from signed_requests import signed_bytes, status_of

from clary.control.engines.local.network import relay
from clary.control.server.edge import connections
from clary.control.server.edge.connection_table import ConnectionTable
from clary.control.server.edge.connections import HEAD_DEADLINE_S, GuardedServer

pytestmark = [pytest.mark.timeout(180), pytest.mark.xdist_group("edge")]

MIB = 1024 * 1024
SLOWEST_S = 2.0  # limit for a health check under attack on a busy machine; before the fix it took 20 s and more


@pytest.fixture
def address(service):
    parts = urlsplit(service.environment["AWS_ENDPOINT_URL"])
    return parts.hostname, parts.port


def send(address, method, path, body=None, **headers):
    connection = http.client.HTTPConnection(*address, timeout=60)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except ConnectionError:
        return 0, b""  # refused while the client was still sending
    finally:
        connection.close()


class Watch:
    """Polls the health of a service continuously and records the slowest response."""

    def __init__(self, address):
        self.address, self.slowest_s, self.failed = address, 0.0, 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        while not self._end.wait(0.05):
            began_s = time.monotonic()
            self.failed += send(self.address, "GET", "/clary/v1/health")[0] != 200
            self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        self._thread.join()


def memory_of(service):
    pid = json.loads((service.home / "run" / "service.json").read_text())["pid"]
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def num_files_of(service):
    pid = json.loads((service.home / "run" / "service.json").read_text())["pid"]
    return len(os.listdir(f"/proc/{pid}/fd"))


@pytest.mark.parametrize(
    "path", ["/clary/v1/session", "/", "/clary/v1/agents/j/1/algo-1/logs", "/clary/v1/jobs/x/stop"]
)
def test_megabytes_of_json_without_a_key_do_not_delay_other_requests(address, path):
    body = b"[" + b"[]," * 2_700_000 + b"[]]"
    statuses = []
    headers = {"Content-Type": "application/json", "X-Amz-Target": "SageMaker.ListTrainingJobs"}

    def attack():
        for _ in range(2):
            statuses.append(send(address, "POST", path, body, **headers)[0])

    with Watch(address) as watch:
        threads = [threading.Thread(target=attack) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert watch.slowest_s < SLOWEST_S
    assert watch.failed == 0
    assert set(statuses) <= {0, 401, 403, 404, 410, 413}


def test_bodies_of_a_hundred_clients_without_a_key_are_not_kept_in_memory(service, address):
    before = memory_of(service)
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: SageMaker.ListTrainingJobs\r\n"
    head += b"Content-Type: application/x-amz-json-1.1\r\nContent-Length: %d\r\n\r\n" % (8 * MIB)
    strangers = [socket.create_connection(address, timeout=10) for _ in range(100)]
    try:
        for stranger in strangers:
            stranger.sendall(head)
        for _ in range(40):
            for stranger in strangers:
                with contextlib.suppress(OSError):  # refused, as expected
                    stranger.sendall(b"x" * 65536)
        assert send(address, "GET", "/clary/v1/health")[0] == 200
        assert memory_of(service) - before < 48 * MIB
    finally:
        for stranger in strangers:
            stranger.close()


def test_bodies_of_reconnecting_clients_without_a_key_are_not_kept_in_memory(service, address):
    before = memory_of(service)
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: SageMaker.ListTrainingJobs\r\n"
    head += b"Content-Type: application/x-amz-json-1.1\r\nContent-Length: %d\r\n\r\n" % (8 * MIB)
    strangers = [None] * 60
    end_s = time.monotonic() + 6.0
    with Watch(address) as watch, contextlib.ExitStack() as opened:
        while time.monotonic() < end_s:
            for index, stranger in enumerate(strangers):
                try:
                    if stranger is None:
                        strangers[index] = opened.enter_context(socket.create_connection(address, timeout=5))
                        strangers[index].sendall(head)
                        strangers[index].settimeout(0.05)
                    else:
                        stranger.sendall(b"x" * 65536)
                except TimeoutError:
                    continue
                except OSError:  # refused and closed: connect again
                    strangers[index] = None
    assert watch.failed == 0
    assert watch.slowest_s < SLOWEST_S
    assert memory_of(service) - before < 48 * MIB


def test_the_response_to_a_refused_body_has_connection_close(address):
    connection = http.client.HTTPConnection(*address, timeout=60)
    try:
        headers = {"Content-Type": "application/json", "X-Amz-Target": "SageMaker.ListTrainingJobs"}
        connection.request("POST", "/", b" " * (8 * MIB), headers)
        answer = connection.getresponse()
        assert answer.status in (400, 403)
        assert answer.getheader("Connection") == "close"
        assert answer.read()
    finally:
        connection.close()


@pytest.mark.long
def test_silent_connections_are_closed_at_the_deadline(service, address):
    before = num_files_of(service)
    with contextlib.ExitStack() as opened, Watch(address) as watch:
        began_s = time.monotonic()
        silent = [opened.enter_context(socket.create_connection(address, timeout=60)) for _ in range(400)]
        for one in silent:
            with contextlib.suppress(ConnectionResetError):
                assert one.recv(100) == b""
        assert HEAD_DEADLINE_S - 1 < time.monotonic() - began_s < HEAD_DEADLINE_S + 15
        end_s = time.monotonic() + 10
        while num_files_of(service) > before + 50 and time.monotonic() < end_s:
            time.sleep(0.1)
        assert num_files_of(service) <= before + 50, "theirs are given back"
    assert (watch.failed, watch.slowest_s < SLOWEST_S) == (0, True)


@pytest.mark.long
def test_unread_responses_do_not_accumulate_in_memory(service, address):
    before = memory_of(service)
    asked = b"GET /clary/v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000
    with contextlib.ExitStack() as opened, Watch(address) as watch:
        deaf = [opened.enter_context(socket.create_connection(address, timeout=5)) for _ in range(8)]
        num_sent = 0
        for one in deaf:
            one.settimeout(0.3)
            with contextlib.suppress(OSError):  # the service stops reading or closes: both are correct
                for _ in range(200):
                    one.sendall(asked)
                    num_sent += 1
        time.sleep(2)
        assert memory_of(service) - before < 48 * MIB, num_sent
    assert num_sent < 8 * 200, "the service rests while its answers lie unread"
    assert (watch.failed, watch.slowest_s < SLOWEST_S) == (0, True)


async def test_an_unread_response_is_aborted_at_its_deadline(monkeypatch):
    monkeypatch.setattr(connections, "ANSWER_DEADLINE_S", 0.5)

    async def answer(request):
        return web.Response(body=b"x" * (32 * MIB))

    table = ConnectionTable(8)
    runner = web.ServerRunner(GuardedServer(answer, table=table))
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]
        began_s = time.monotonic()
        with socket.create_connection(("127.0.0.1", port)) as deaf:
            deaf.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            while not len(table) and time.monotonic() - began_s < 10:
                await asyncio.sleep(0.01)
            while len(table) and time.monotonic() - began_s < 10:
                await asyncio.sleep(0.05)
        assert len(table) == 0
        assert 0.4 < time.monotonic() - began_s < 10
    finally:
        await runner.cleanup()


# Sends requests without a key, as fast as four threads can, through the relay of the job's host.
FLOOD = """
import http.client, os, threading, time
from urllib.parse import urlsplit

place = urlsplit(os.environ["AWS_ENDPOINT_URL"])
body, end_s, answers = b"[" + b"[]," * 2_700_000 + b"[]]", time.monotonic() + 10, []

def attack():
    while time.monotonic() < end_s:
        connection = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
        try:
            connection.request("POST", "/clary/v1/session", body, {"Content-Type": "application/json"})
            answers.append(connection.getresponse().status)
        except OSError:
            answers.append(0)
        finally:
            connection.close()

print("begins", flush=True)
threads = [threading.Thread(target=attack) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("answers", len(answers), sorted(set(answers)), flush=True)
"""


@pytest.mark.clients
@pytest.mark.long
def test_megabytes_of_json_from_a_job_do_not_delay_other_requests(service, address):
    aws = Clients(service)
    other = start(aws, job_request(unique("beside"), "for n in $(seq 300); do echo line $n; sleep 0.05; done"))
    before = memory_of(service)
    with Watch(address) as watch:
        request = script_request(aws, unique("flood"), {"train.py": FLOOD})
        described = run(aws, request, timeout_s=120)
        taken = memory_of(service) - before
    assert described["TrainingJobStatus"] == "Completed", described
    (said,) = [line for line in log_of(aws, request["TrainingJobName"]) if line.startswith("answers ")]
    statuses = set(json.loads(said.split(" ", 2)[2]))
    assert statuses <= {0, 401, 403, 413}, said
    assert int(said.split()[1]) > 8, said
    assert (watch.failed, watch.slowest_s < SLOWEST_S) == (0, True), watch.slowest_s
    assert taken < 96 * MIB
    assert wait(aws, other)["TrainingJobStatus"] == "Completed"
    assert [line for line in log_of(aws, other) if line.startswith("line ")] == [f"line {n + 1}" for n in range(300)]


@pytest.mark.long
def test_headers_sent_one_at_a_time_are_cut_off_at_the_deadline(address):
    slow = [socket.create_connection(address, timeout=HEAD_DEADLINE_S + 20) for _ in range(20)]
    began_s = time.monotonic()
    try:
        for one in slow:
            one.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\n")
        for number in range(8):
            time.sleep(1)
            for one in slow:
                one.sendall(b"X-%d: b\r\n" % number)
        with Watch(address) as watch:
            answers = [one.recv(100) for one in slow]
        assert time.monotonic() - began_s < HEAD_DEADLINE_S + 15
        assert all(answer.startswith(b"HTTP/1.1 408") for answer in answers), answers[0]
        assert watch.slowest_s < SLOWEST_S
    finally:
        for one in slow:
            one.close()


def test_the_total_size_of_request_headers_is_limited(address):
    for pieces, pause_s in ((1, 0), (50, 0.01)):
        headers = [b"X-%d: %s\r\n" % (number, b"v" * 1500) for number in range(60)]
        with socket.create_connection(address, timeout=10) as connection:
            connection.sendall(b"GET /clary/v1/health HTTP/1.1\r\nHost: localhost\r\n")
            try:
                for start in range(0, 60, max(1, 60 // pieces)):
                    connection.sendall(b"".join(headers[start : start + max(1, 60 // pieces)]))
                    time.sleep(pause_s)
                connection.sendall(b"\r\n")
                assert connection.recv(100).startswith(b"HTTP/1.1 431")
            except ConnectionError:
                pass  # closed while the client was still sending


@pytest.mark.parametrize("name", ["evil.example", "localhost.evil.example:80", "evil.amazonaws.com"])
def test_a_page_under_another_host_name_is_refused(address, name):
    for method, path in (("GET", "/clary/v1/health"), ("GET", "/"), ("POST", "/clary/v1/session"), ("GET", "/b/k")):
        status, answer = send(address, method, path, Host=name, Accept="text/html")
        assert (status, b"host_names" in answer) == (403, True), path


def test_the_bucket_may_be_part_of_the_host_name(service, address):
    keys = {name.lower(): value for name, value in service.environment.items() if "ACCESS_KEY" in name}
    client = boto3.client(
        "s3",
        endpoint_url=f"http://localhost:{address[1]}",
        region_name="us-west-2",
        config=Config(s3={"addressing_style": "virtual"}, retries={"max_attempts": 1}),
        **keys,
    )
    hosts = []
    client.meta.events.register("before-send.s3", lambda request, **_: hosts.append(urlsplit(request.url).hostname))
    # Not every system resolves names below localhost; this test patches the resolution.
    before = socket.getaddrinfo
    socket.getaddrinfo = lambda host, *rest, **options: before(
        "127.0.0.1" if str(host).endswith(".localhost") else host, *rest, **options
    )
    try:
        client.create_bucket(Bucket="before-the-name")
        client.put_object(Bucket="before-the-name", Key="a/b c", Body=b"said")
        assert client.get_object(Bucket="before-the-name", Key="a/b c")["Body"].read() == b"said"
    finally:
        socket.getaddrinfo = before
    assert set(hosts) == {"before-the-name.localhost"}


@pytest.mark.long
def test_a_replayed_request_is_refused_after_a_restart_of_the_service(tmp_path):
    own = start_service(tmp_path / "home", "")
    try:
        body = json.dumps({"ExperimentName": "replayed"}).encode()
        request = signed_bytes(own, body, target="SageMaker.CreateExperiment")
        assert status_of(raw_request(own, request)) == 200
        gone = json.dumps({"ExperimentName": "replayed"}).encode()
        assert status_of(raw_request(own, signed_bytes(own, gone, target="SageMaker.DeleteExperiment"))) == 200
        pid = json.loads((own.home / "run" / "service.json").read_text())["pid"]
        os.kill(pid, 9)
        own.clary("up")
        answer = raw_request(own, request)
        assert (status_of(answer), b"used before" in answer) == (400, True), answer
        fresh = signed_bytes(own, json.dumps({"ExperimentName": "fresh"}).encode(), target="SageMaker.CreateExperiment")
        assert status_of(raw_request(own, fresh)) == 200
    finally:
        own.clary("down", check=False)


async def test_connections_of_a_job_have_their_own_source_address():
    peers = []

    async def serve(reader, writer):
        peers.append(writer.get_extra_info("peername")[0])
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    listener = relay.make_listener(0)
    target = relay.RelayTarget("127.0.0.1", server.sockets[0].getsockname()[1], "127.80.1.2")
    relaying = asyncio.create_task(relay.serve(listener, target))
    for _ in range(2):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.getsockname()[1])
        assert await reader.read() == b""
        writer.close()
    relaying.cancel()
    await asyncio.gather(relaying, return_exceptions=True)
    listener.close()
    server.close()
    assert peers == ["127.80.1.2"] * 2
