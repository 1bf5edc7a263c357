"""Attacks on the ports of ranks that share this machine's network: Horovod, SMDDP and SMP for TensorFlow.

A stranger can only reach the store of rank 0 and, while a group is formed, a port of each rank. Rank 1 joins after the
strangers. A client that authenticates and then sends wrong data is a program of the job itself: it can end the job, and
the error names its rank.
"""

import contextlib
import os
import socket
import struct
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from horovod_programs import Ranks, free_port
from strangers import (
    PROOF,
    Knocking,
    Recording,
    assert_no_proof,
    is_hung_up_on,
    listening_places,
    peak_bytes,
    silent,
)

from clary.train.collective.bootstrap.group import connect_group
from clary.train.collective.bootstrap.handshake import MAGIC, NONCE_BYTES, PROOF_BYTES
from clary.train.collective.bootstrap.tcp_store import TcpStore
from clary.train.collective.settings import CollectiveSettings
from needs import python_of

PROGRAM = Path(__file__).with_name("door_program.py")
MIB = 1 << 20
MAX_GROWTH_BYTES = 128 * MIB  # memory growth of rank 0 under attack; attacks announce 4 GiB and send 8 MiB at a time
ENVIRONMENTS = {"horovod": "train", "smddp": "tensorflow", "smp": "tensorflow"}
WAYS = [
    pytest.param("horovod"),
    pytest.param("smddp", marks=[pytest.mark.needs("tensorflow"), pytest.mark.long]),
    pytest.param("smp", marks=[pytest.mark.needs("tensorflow"), pytest.mark.long]),
]
HELLO_BYTES = len(MAGIC) + 41 + PROOF_BYTES  # greeting and proof
SECRET = "of the ranks alone"

pytestmark = [pytest.mark.needs("train"), pytest.mark.timeout(300), pytest.mark.xdist_group("rank-doors")]


class Doors:
    """Two ranks, of which the second joins when the test calls it.

    Attributes:
        port: port of the store.
    """

    def __init__(self, way, folder, **variables):
        self.port = free_port()
        self._folder = folder
        self.ranks = Ranks(
            PROGRAM,
            2,
            folder,
            way,
            python=python_of(ENVIRONMENTS[way]),
            CLARY_HOROVOD_PORT=str(self.port),
            CLARY_COLLECTIVE_PORT=str(self.port),
            CLARY_COLLECTIVE_SECRET=SECRET,
            CLARY_COLLECTIVE_CONNECT_TIMEOUT_S="100",
            CLARY_PARALLEL_TIMEOUT_S="60",
            TF_CPP_MIN_LOG_LEVEL="3",
            **variables,
        )
        self.place = ("127.0.0.1", self.port)
        self._await_store()

    @property
    def pid(self):
        """Return the pid of rank 0."""
        return self.ranks.processes[0].pid

    def call(self, name):
        """Let rank 1 join (`come`), or let both ranks end (`end`)."""
        (self._folder / name).touch()

    def await_lines(self, count, limit_s=90):
        """Wait until rank 0 has printed `count` more lines; with Horovod each line is a new group."""
        wanted = self.num_lines + count
        deadline = time.monotonic() + limit_s
        while self.num_lines < wanted:
            assert time.monotonic() < deadline, self.ranks.output(0)[-3000:]
            assert self.ranks.processes[0].poll() is None, self.ranks.output(0)[-3000:]
            time.sleep(0.05)

    @property
    def num_lines(self):
        """Return the number of lines that rank 0 has printed."""
        return self.ranks.output(0).count("so far ")

    def end(self):
        """End the ranks; check that both made the same number of steps."""
        self.call("end")
        first, second = self.ranks.wait(90)
        assert (first.code, second.code) == (0, 0), f"{first.output[-3000:]}\n{second.output[-3000:]}"
        assert first.output.splitlines()[-1] == second.output.splitlines()[-1]
        assert first.output.splitlines()[-1].startswith("steps ")

    def _await_store(self):
        self.ranks.await_words("waits")
        deadline = time.monotonic() + 90
        while self.place not in listening_places(self.pid):
            assert time.monotonic() < deadline, self.ranks.output(0)[-3000:]
            assert self.ranks.processes[0].poll() is None, self.ranks.output(0)[-3000:]
            time.sleep(0.05)


@pytest.fixture
def open_doors(tmp_path):
    """A function that starts two ranks, which are ended after the test."""
    opened = []

    def open_them(way="horovod", **variables):
        opened.append(Doors(way, tmp_path, **variables))
        return opened[-1]

    yield open_them
    for doors in opened:
        for process in doors.ranks.processes:
            process.kill()
            process.wait()


@pytest.mark.long(40)
@pytest.mark.parametrize("way", WAYS)
def test_ranks_form_groups_and_train_while_every_port_is_attacked(open_doors, way):
    doors = open_doors(way)
    before = peak_bytes(doors.pid)
    knocking = Knocking(doors.pid)
    try:
        knocking.await_places(2)  # the store, and rank 0's port while it waits for rank 1
        doors.call("come")
        doors.await_lines(3)
        assert peak_bytes(doors.pid) - before < MAX_GROWTH_BYTES + (200 * MIB if way != "horovod" else 0)
        doors.end()
    finally:
        knocking.close()
    assert not [failure for failure in knocking.failures if f"{doors.port})" in failure], "the store hangs up in time"
    assert len(knocking.answers) >= 10
    assert_no_proof(knocking.answers)


def test_a_hundred_silent_connections_are_closed_and_delay_no_rank(open_doors):
    doors = open_doors()
    quiet = silent(doors.place)
    assert len(quiet) == 100
    begun = time.monotonic()
    doors.call("come")
    doors.await_lines(2)
    doors.end()
    assert time.monotonic() - begun < 60
    assert all(is_hung_up_on(sock) for sock in quiet)
    for sock in quiet:
        sock.close()


@pytest.mark.long(10)
def test_only_the_stores_port_is_open_once_the_group_is_formed(open_doors):
    doors = open_doors()
    doors.call("come")
    doors.await_lines(1)
    seen = [set(listening_places(doors.pid)) for _ in range(100)]
    doors.end()
    assert set.intersection(*seen) == {doors.place}


@pytest.mark.long(10)
def test_a_replayed_handshake_of_a_rank_is_refused(open_doors):
    recording = Recording()
    try:
        doors = open_doors(PORT_OF_RANK_1=str(recording.port))
        recording.lead_to(doors.port)
        doors.call("come")
        doors.await_lines(2)
        words = recording.words
        assert len(words) > HELLO_BYTES + 200, "a greeting, a proof and requests"
        for cut in (len(words), HELLO_BYTES):
            with socket.create_connection(doors.place, timeout=5) as sock:
                sock.sendall(words[:cut])
                sock.settimeout(15)
                answer = b""
                while more := _received(sock):
                    answer += more
            assert_no_proof([answer])
            assert len(answer) >= NONCE_BYTES, "a nonce of its own"
        assert len(answer) == NONCE_BYTES + PROOF, "and a refusal"
        doors.await_lines(1)
        doors.end()
    finally:
        recording.close()


@pytest.mark.long(10)
def test_a_rank_with_a_wrong_secret_is_refused_and_the_others_continue(open_doors, tmp_path):
    doors = open_doors()
    doors.call("come")
    doors.await_lines(1)
    settings = settings_of(doors)
    with pytest.raises(Exception, match=r"did not take the proof of rank 1.*CLARY_COLLECTIVE_SECRET"):
        TcpStore(*doors.place, rank=1, secret="a guess", timeout_s=5)
    with pytest.raises(Exception, match="did not take the proof of rank 1"):
        TcpStore(*doors.place, rank=1, secret="", timeout_s=5)
    assert settings.secret == SECRET
    doors.await_lines(1)
    doors.end()


def test_a_program_that_holds_rank_zeros_port_is_named_by_both_ranks(tmp_path):
    """Both ranks end at once with an error that names the port; they send the stranger only a greeting."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        heard = []
        thread = threading.Thread(target=_answer_nonsense, args=(stranger, heard), daemon=True)
        thread.start()
        (tmp_path / "come").touch()
        started = time.monotonic()
        ranks = Ranks(PROGRAM, 2, tmp_path, "horovod", CLARY_HOROVOD_PORT=str(port), CLARY_COLLECTIVE_SECRET=SECRET)
        first, second = ranks.wait(100)
    assert time.monotonic() - started < 100
    assert (first.code, second.code) == (1, 1)
    assert f"rank 0 cannot serve the store at 127.0.0.1 port {port}: Address already in use" in first.output
    assert f"the store at 127.0.0.1 port {port} is not one that rank 1 can use" in second.output
    assert "that no other program uses this port" in second.output
    assert all(SECRET.encode() not in words for words in heard)


LIES = {
    "zeros": bytes(1 << 20),
    "ones": b"\xff" * (1 << 20),
    "four GiB": struct.pack("<QQQQ", 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF) * 1000,
    "text": b"GET / HTTP/1.1\r\n\r\n" * 10_000,
    "nothing": b"",
}


@pytest.mark.parametrize("stream", ["side", "lane"])
@pytest.mark.parametrize("lie", LIES)
@pytest.mark.sweep("stream", "lie")
def test_an_authenticated_rank_that_sends_wrong_data_ends_the_job_and_is_named(open_doors, stream, lie):
    """Authentication cannot refuse this rank: rank 0 ends in time, names the rank, and its memory stays bounded."""
    doors = open_doors(HOROVOD_GLOO_TIMEOUT_SECONDS="8")
    before = peak_bytes(doors.pid)
    settings = settings_of(doors)
    store = TcpStore(*doors.place, rank=1, secret=SECRET, timeout_s=30)
    try:
        liar = connect_group(store, rank=1, size=2, group_name="horovod.1", settings=settings)
        sides = [fd for fd in (*liar.side_fds, *liar.lane_fds) if fd >= 0]
        chosen = [fd for fd in (liar.side_fds if stream == "side" else liar.lane_fds) if fd >= 0]
        assert chosen
        for descriptor in chosen:
            _send(descriptor, LIES[lie])
        if lie == "nothing":
            for descriptor in sides:
                os.close(descriptor)
            sides = []
        peak = watch_until_end(doors.ranks.processes[0], limit_s=60)
        for descriptor in sides:
            os.close(descriptor)
    finally:
        store.close()
    output = doors.ranks.output(0)
    assert doors.ranks.processes[0].returncode == 1, output[-3000:]
    assert "rank 1" in output.splitlines()[-1], output[-3000:]
    assert peak - before < MAX_GROWTH_BYTES


def watch_until_end(process, *, limit_s):
    """Wait until a process ends; return its highest observed memory in bytes."""
    peak, deadline = 0, time.monotonic() + limit_s
    while process.poll() is None:
        assert time.monotonic() < deadline, f"it still runs after {limit_s} s"
        with contextlib.suppress(OSError, AssertionError):  # the process may end at this moment
            peak = max(peak, peak_bytes(process.pid))
        time.sleep(0.02)
    return peak


def settings_of(doors):
    """Return the settings with which rank 1 of the job joins."""
    settings = CollectiveSettings.from_environment({"CLARY_COLLECTIVE_SECRET": SECRET, "MASTER_ADDR": "127.0.0.1"})
    return replace(settings, host="host-1", connect_timeout_s=30.0)


def _send(descriptor, words):
    with socket.socket(fileno=os.dup(descriptor)) as sock:
        sock.settimeout(10)
        with contextlib.suppress(OSError):  # rank 0 has closed the connection
            sock.sendall(words)


def _received(sock):
    with contextlib.suppress(ConnectionResetError):
        return sock.recv(4096)
    return b""


def _answer_nonsense(listener, heard):
    while True:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        with sock:
            sock.settimeout(10)
            heard.append(sock.recv(1000))
            sock.sendall(bytes(32))
            heard.append(sock.recv(1000))
            sock.sendall(b"\x01" + bytes(32))
