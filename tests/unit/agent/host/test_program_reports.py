"""Reports about a program that its own processes forge: the agent neither believes them nor waits for them."""

import contextlib
import json
import os
import signal
import socket
import types

import pytest

from clary.agent.host import first_process
from clary.agent.host.first_process import FirstProcess
from clary.agent.host.program import Program
from clary.agent.host.sandbox import ProcessSpec, Sandbox
from clary.base.clock import SystemClock
from clary.base.processes import ProcessEntry
from clary.contract.launch_plan import Isolation, Resources

WAIT_S = 5.0


class StubFirstProcess:
    """A host whose reports the test writes; `is_first` says whether this process counts as the host's first."""

    def __init__(self, *, is_first=True):
        self.is_first = is_first
        self.is_memory_limited = False
        self.control, self.remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.control.setblocking(False)
        self.outputs = []

    def has_started(self, pid):
        return self.is_first and pid == os.getpid()

    def launch(self, processes, *, output_fds):
        self.outputs = [os.dup(descriptor) for descriptor in output_fds]

    def say(self, kind, **fields):
        self.remote.send(json.dumps({"kind": kind, **fields}).encode())

    def end(self, *, pidfd=None):
        with contextlib.suppress(OSError):
            self.remote.close()
        for descriptor in self.outputs:
            os.close(descriptor)
        self.outputs = []

    def send(self, message):
        return False

    def clean_up(self):
        self.control.close()

    def last_words(self):
        return ""

    def oom_kills(self):
        return 0

    def peak_memory_bytes(self):
        return None


def sandbox(tmp_path, *, isolation=Isolation.PROCESSES):
    return Sandbox(
        isolation=isolation,
        hostname="algo-1",
        host_folder=str(tmp_path),
        ml_folder=str(tmp_path),
        resources=Resources(num_cpus=1, memory_bytes=1 << 20, gpu_indices=()),
        cgroup_name="none",
        hosts_file={},
    )


@contextlib.contextmanager
def running(tmp_path, *, is_first=True, num_processes=2):
    host = StubFirstProcess(is_first=is_first)
    specs = [
        ProcessSpec(argv=("a",), environment={}, working_folder="/", rank=rank, local_rank=rank)
        for rank in range(num_processes)
    ]
    program = Program(specs, sandbox(tmp_path), on_output=lambda *_: None, clock=SystemClock(), first_process=host)
    program._launch(host.launch)
    try:
        yield program, host
    finally:
        program.close()


def exited(index):
    return {"index": index, "code": 0, "signal": None, "at": 1.0, "doomed": False}


@pytest.mark.parametrize("index", [2, -1, "0", None, 10**30, True])
@pytest.mark.parametrize("kind", ["forked", "exited"])
def test_a_report_about_a_process_that_the_program_lacks_ends_the_host(tmp_path, kind, index):
    with running(tmp_path) as (program, host):
        host.say("init")
        host.say("ready", not_isolated=[])
        host.say(kind, **exited(index))
        result = program.wait(WAIT_S)
        assert result is not None, "the reader waits on"
        assert [end.signal for end in result.exits] == [signal.SIGKILL] * 2
        assert "cannot be used" in result.lost_why
        assert f"process {os.getpid()}" in result.lost_why


@pytest.mark.parametrize(
    "data",
    [b"x", b"[]", b"{}", b'{"kind": []}', b"[" * 60000, b'{"kind": "forked"}', b"\xff"],
    ids=["no JSON", "a list", "no kind", "an odd kind", "nested too deep", "no index", "no text"],
)
def test_a_report_that_is_none_ends_the_host(tmp_path, data):
    with running(tmp_path) as (program, host):
        host.say("init")
        host.remote.send(data)
        assert program.wait(WAIT_S) is not None


def test_only_the_first_process_tells_of_exits(tmp_path):
    with running(tmp_path, is_first=False, num_processes=1) as (program, host):
        host.say("init")
        host.say("ready", not_isolated=[])
        host.say("forked", index=0)
        host.say("exited", **exited(0))
        assert program.wait(0.3) is None
        assert program.init_pid == 0
        assert program.running() == 1
        assert set(program.ranks_by_pid()) == {os.getpid()}


def test_a_second_announcement_of_the_first_process_changes_nothing(tmp_path):
    with running(tmp_path, num_processes=1) as (program, host):
        host.say("init")
        child = os.fork()
        if child == 0:
            host.say("init")
            host.say("exited", **exited(0))
            os._exit(0)
        os.waitpid(child, 0)
        host.say("exited", **exited(0) | {"code": 3})
        result = program.wait(WAIT_S)
        assert program.init_pid == os.getpid()
        assert [end.exit_code for end in result.exits] == [3]
        assert sum(f"process {child} was ignored" in note for note in result.notes) == 2


@pytest.mark.parametrize("kind", ["exited", None])
def test_forged_reports_leave_room_for_other_notes(tmp_path, kind):
    with running(tmp_path, num_processes=1) as (program, host):
        host.say("init")
        child = os.fork()
        if child == 0:
            for number in range(500):
                host.say(kind or f"odd {number}", **exited(0))
            os._exit(0)
        os.waitpid(child, 0)
        host.say("note", text="a process hangs")
        host.say("exited", **exited(0))
        notes = program.wait(WAIT_S).notes
        assert "a process hangs" in notes
        [counted] = [note for note in notes if "ignored" in note]
        assert "500" in counted
        assert f"process {child}" in counted


@pytest.mark.parametrize(("parent", "is_believed"), [(7, True), (8, False), (None, True)])
def test_a_first_process_that_proc_hides_is_believed(tmp_path, monkeypatch, parent, is_believed):
    entry = None if parent is None else ProcessEntry(parent=parent, state="S", started_at=1)
    monkeypatch.setattr(first_process, "read_entry", lambda pid: entry)
    host = FirstProcess(sandbox(tmp_path, isolation=Isolation.NAMESPACES))
    try:
        assert not host.has_started(9)
        host._init = types.SimpleNamespace(pid=7, poll=lambda: 1)
        assert host.has_started(9) is is_believed
    finally:
        host.clean_up()
