"""Agents forked from one process that has imported their modules, with the real agent as far as its first request."""

import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from clary.base.processes import ProcessId, read_arguments, read_environment
from clary.control.engines.local import fork_server as fork_server_module
from clary.control.engines.local import killing
from clary.control.engines.local.agent_processes import (
    AGENT,
    MARK_VARIABLE,
    POOL_TOKEN_VARIABLE,
    TOKEN_VARIABLE,
    own_environment,
    process_environment,
)
from clary.control.engines.local.fork_server import ForkServer

_TOKENS = {TOKEN_VARIABLE: "token-of-the-attempt", POOL_TOKEN_VARIABLE: "token-of-the-pool"}
_END_S = 10.0


@pytest.fixture
def service():
    """A service that accepts connections and answers nothing, so that agents wait for it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def server():
    server = ForkServer(own_environment(os.environ))
    yield server
    server.close()


@pytest.fixture
def agents():
    """A list of processes that end with the test."""
    found: list[ProcessId] = []
    yield found
    for agent in found:
        killing.kill(agent)


def order(folder: Path, url: str, *, mark="mark", host="algo-1"):
    folder.mkdir(exist_ok=True)
    command = [*AGENT, "--service", url, "--pool", "pool-1", "--job", "job", "--attempt", "1", "--host", host]
    environment = process_environment(os.environ, mark) | _TOKENS
    return {"command": command, "log_path": folder / "agent.log", "environment": environment}


def fork(server, agents, **arguments) -> ProcessId:
    agent = server.fork(arguments["command"], log_path=arguments["log_path"], environment=arguments["environment"])
    assert agent is not None
    agents.append(agent)
    return agent


def wait_until(is_true, timeout_s=_END_S):
    deadline = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline, "not true in time"
        time.sleep(0.01)


def wait_until_begun(agent: ProcessId):
    """Wait until an agent talks to the service; before, the end of its server may still end it."""

    def has_socket():
        found = subprocess.run(["ls", "-l", f"/proc/{agent.pid}/fd"], capture_output=True, text=True, check=False)
        return "socket:" in found.stdout

    wait_until(has_socket)


def test_a_forked_agent_shows_its_own_command_and_mark_and_no_token(server, agents, service, tmp_path):
    one = order(tmp_path / "one", service, mark="mark-of-one")
    two = order(tmp_path / "two", service, mark="mark-of-two", host="algo-2")
    first, second = fork(server, agents, **one), fork(server, agents, **two)
    for agent, given in ((first, one), (second, two)):
        assert read_arguments(agent.pid) == given["command"]
        shown = read_environment(agent.pid).split(b"\0")
        assert f"{MARK_VARIABLE}={given['environment'][MARK_VARIABLE]}".encode() in shown
        assert not [text for text in shown if b"token-of" in text]
        assert killing.with_variable(MARK_VARIABLE, given["environment"][MARK_VARIABLE]) == [agent]
        assert os.getsid(agent.pid) == agent.pid
        assert os.readlink(f"/proc/{agent.pid}/cwd") == str(given["log_path"].parent)
        assert os.readlink(f"/proc/{agent.pid}/fd/1") == str(given["log_path"])
        assert os.readlink(f"/proc/{agent.pid}/fd/2") == str(given["log_path"])
        assert os.readlink(f"/proc/{agent.pid}/fd/0") == "/dev/null"


def test_a_forked_agent_sends_its_tokens_to_the_service(server, agents, tmp_path):
    seen = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            seen.append(self.headers.get("Authorization", ""))
            self.send_error(410)

        do_GET = do_POST

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        fork(server, agents, **order(tmp_path / "host", f"http://127.0.0.1:{listening.server_port}"))
        wait_until(lambda: any("token-of-the" in text for text in seen))
        listening.shutdown()


def test_agents_outlive_the_server_and_the_next_order_starts_another(server, agents, service, tmp_path):
    first = fork(server, agents, **order(tmp_path / "one", service))
    wait_until_begun(first)
    old = server._running.child.pid
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: ProcessId.of(old) is None)
    second = fork(server, agents, **order(tmp_path / "two", service))
    assert first.is_alive()
    assert second.is_alive()
    assert server._running.child.pid != old


def test_an_agent_that_ended_leaves_no_zombie(server, agents, service, tmp_path):
    agent = fork(server, agents, **order(tmp_path / "one", service))
    os.kill(agent.pid, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{agent.pid}").exists())


def test_the_server_ends_with_the_process_that_started_it_and_agents_live_on(agents, service, tmp_path):
    given = order(tmp_path / "one", service)
    program = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from clary.control.engines.local.agent_processes import own_environment\n"
        "from clary.control.engines.local.fork_server import ForkServer\n"
        "server = ForkServer(own_environment(os.environ))\n"
        f"agent = server.fork({given['command']!r}, log_path=Path({str(given['log_path'])!r}),"
        f" environment={given['environment']!r})\n"
        "print(server._running.child.pid, agent.pid, flush=True)\n"
        "time.sleep(300)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as starter:
        forking, pid = map(int, starter.stdout.readline().split())
        agent = ProcessId.of(pid)
        agents.append(agent)
        wait_until_begun(agent)
        starter.kill()
    wait_until(lambda: ProcessId.of(forking) is None)
    assert agent.is_alive()


def test_no_agent_runs_whose_start_was_not_answered(monkeypatch, service, tmp_path):
    """The server stops between fork and answer; then the caller kills it, and starts the agent by itself."""
    monkeypatch.setattr(fork_server_module, "FORK_TIMEOUT_S", 3.0)
    stops = "import signal\nfork_server.ProcessId.of = lambda pid: os.kill(os.getpid(), signal.SIGSTOP)"
    monkeypatch.setattr(fork_server_module, "COMMAND", server_that(stops))
    server = ForkServer(own_environment(os.environ))
    given = order(tmp_path / "one", service, mark="mark-without-answer")
    assert server.fork(given["command"], log_path=given["log_path"], environment=given["environment"]) is None
    wait_until(lambda: not killing.with_variable(MARK_VARIABLE, "mark-without-answer"))
    assert server._running is None


def server_that(changes: str) -> tuple[str, ...]:
    """Return the command of a server whose module is changed first."""
    program = f"import os\nfrom clary.agent import fork_server\n{changes}\nos._exit(fork_server.main())"
    return (sys.executable, "-P", "-c", program)


def test_where_the_kernel_shows_no_other_command_the_agent_is_a_new_interpreter(
    monkeypatch, server, agents, service, tmp_path
):
    monkeypatch.setattr(fork_server_module, "COMMAND", server_that("fork_server.show_start = lambda *_: None"))
    given = order(tmp_path / "one", service, mark="mark-of-a-program")
    agent = fork(server, agents, **given)
    wait_until(lambda: read_arguments(agent.pid) == given["command"])
    assert killing.with_variable(MARK_VARIABLE, "mark-of-a-program") == [agent]
    wait_until_begun(agent)


def test_an_idle_server_ends_once_its_agents_have_ended(monkeypatch, server, agents, service, tmp_path):
    monkeypatch.setattr(fork_server_module, "COMMAND", server_that("fork_server.IDLE_S = 0.5"))
    agent = fork(server, agents, **order(tmp_path / "one", service))
    forking = ProcessId.of(server._running.child.pid)
    time.sleep(1.5)
    assert forking.is_alive()
    killing.kill(agent)
    wait_until(lambda: not forking.is_alive())
    fork(server, agents, **order(tmp_path / "two", service))


def test_a_server_that_cannot_import_leaves_the_start_to_the_caller(monkeypatch, service, tmp_path, caplog):
    monkeypatch.setattr(fork_server_module, "COMMAND", (sys.executable, "-P", "-c", "raise SystemExit(3)"))
    server = ForkServer(own_environment(os.environ))
    given = order(tmp_path / "one", service)
    assert server.fork(given["command"], log_path=given["log_path"], environment=given["environment"]) is None
    assert "without the fork server" in caplog.text


def test_a_log_that_cannot_be_opened_leaves_the_start_to_the_caller(server, service, tmp_path):
    given = order(tmp_path / "one", service)
    given["log_path"].mkdir()
    assert server.fork(given["command"], log_path=given["log_path"], environment=given["environment"]) is None


def test_an_order_that_fits_into_no_pipe_blocks_nothing_and_is_left_to_the_caller(server, service, tmp_path, caplog):
    given = order(tmp_path / "one", service, mark="mark-of-a-large-order")
    large = given["environment"] | {"LARGE": "x" * (1 << 20)}
    assert server.fork(given["command"], log_path=given["log_path"], environment=large) is None
    assert "only a part of an order" in caplog.text
    assert not killing.with_variable(MARK_VARIABLE, "mark-of-a-large-order")


def test_other_programs_are_not_forked(server, tmp_path):
    assert server.fork(["/bin/true"], log_path=tmp_path / "log", environment={}) is None
    assert server._running is None


def test_the_server_ends_when_its_object_is_freed(service):
    server = ForkServer(own_environment(os.environ))
    server.prepare()
    pid = server._running.child.pid
    assert ProcessId.of(pid) is not None
    del server
    wait_until(lambda: not Path(f"/proc/{pid}").exists())


def test_orders_of_several_threads_get_their_own_agents(server, agents, service, tmp_path):
    found = {}

    def ask(number):
        given = order(tmp_path / str(number), service, host=f"algo-{number}")
        found[number] = fork(server, agents, **given)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, agent in found.items():
        assert read_arguments(agent.pid)[-1] == f"algo-{number}"
