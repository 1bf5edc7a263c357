"""The real agent, started as an engine starts it, with real programs, against a FakeService."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import clary
from clary.base.processes import live_descendants
from clary.contract.agent_protocol import RECLAIM_REASON, HostPhase, OrderKind
from clary.contract.launch_plan import Isolation, LaunchPlan, MetricDefinition
from clary.testing.fake_service import FakeService
from clary.testing.launch_plans import make_plan

MARK = "TEST_MARK"  # in the environment of agent and program, to find their leftovers


class AgentUnderTest:
    """An agent process and the service that it reports to."""

    def __init__(self, service: FakeService, mark: str) -> None:
        self.service = service
        self.mark = mark
        plan = service.plan
        self.process = subprocess.Popen(
            [
                sys.executable,
                *("-m", "clary.agent", "--service", service.url, "--pool", plan.pool),
                *("--job", plan.job_name, "--attempt", str(plan.attempt), "--host", service.host),
            ],
            env={
                **os.environ,
                "PYTHONPATH": str(Path(clary.__file__).parents[1]),
                "CLARY_AGENT_TOKEN": service.token,
                "CLARY_POOL_TOKEN": plan.pool_token,
                MARK: mark,
            },
            start_new_session=True,
        )

    def wait(self, timeout_s: float = 20.0) -> int:
        return self.process.wait(timeout_s)

    def left_behind(self) -> list[str]:
        """Return the command lines of live processes of the program and of its first process, which has no mark."""
        found = []
        init_pid = self.service.facts.init_pid if self.service.facts is not None else None
        if init_pid is not None and Path(f"/proc/{init_pid}").exists():
            found.append(f"first process {init_pid}")
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit() or folder.name == str(self.process.pid):
                continue
            try:
                if f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes():
                    found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return found


@pytest.fixture
def run_agent(tmp_path: Path) -> Iterator[Callable[..., AgentUnderTest]]:
    """A function that starts an agent for a command; the fixture checks afterwards that no process is left."""
    services: list[FakeService] = []
    agents: list[AgentUnderTest] = []

    def run(*command: str, **changes: object) -> AgentUnderTest:
        service = FakeService(agent_plan(tmp_path, command=command, **changes))
        services.append(service)
        service.order_at(HostPhase.PREPARED, OrderKind.RUN)
        service.order_at(HostPhase.EXITED, OrderKind.RELEASE, is_last=True)
        agents.append(AgentUnderTest(service, mark=str(tmp_path)))
        return agents[-1]

    yield run
    for agent in agents:
        if agent.process.poll() is None:
            agent.process.kill()
            agent.process.wait(10)
    for service in services:
        service.kill()
    for agent in agents:
        assert agent.left_behind() == []


def agent_plan(folder: Path, **changes: object) -> LaunchPlan:
    plan = make_plan(
        **{
            "job_name": f"agent-{uuid.uuid4().hex[:12]}",  # names the cgroup, which must be unique
            "isolation": Isolation.PROCESSES,
            "work_folder": str(folder / "home" / "jobs" / "job-1" / "1"),
            "cache_folder": str(folder / "home" / "cache"),
            "user_environment": {MARK: str(folder)},
            **changes,
        }
    )
    return replace(plan, environment=replace(plan.environment, python=sys.executable))


def test_a_command_is_run_and_its_exit_code_reported(run_agent) -> None:
    agent = run_agent("/bin/bash", "-c", "echo hi; exit 3")
    assert agent.wait() == 0
    facts = agent.service.facts
    assert facts.phase is HostPhase.RELEASED
    assert [(item.exit_code, item.signal, item.is_consequence) for item in facts.exits] == [(3, None, False)]
    assert (facts.failure.fault, facts.failure.exit_code) == ("algorithm", 3)
    assert facts.not_isolated
    assert "hi" in agent.service.texts
    host_folder = Path(agent.service.plan.work_folder) / "algo-1"
    assert sorted(path.name for path in host_folder.iterdir()) == ["agent.log", "ml"]
    assert (host_folder / "agent.log").read_text().count("Traceback") == 0


def test_the_program_sees_no_token_and_its_output_arrives(run_agent) -> None:
    agent = run_agent(
        sys.executable,
        "-c",
        "import os, sys, pathlib\n"
        "harmless = ('CLARY_STOP_', 'CLARY_ERRORS_', 'CLARY_COLLECTIVE_', 'CLARY_STEPS_',\n"
        "            'CLARY_PROFILES_', 'CLARY_HOST_')\n"
        "names = [name for name in os.environ if name.startswith('CLARY') and not name.startswith(harmless)]\n"
        "print('token', names)\n"
        "print('loss=0.25')\n"
        "pathlib.Path(os.environ['SAGEMAKER_BASE_DIR'], 'output/failure').write_text('the reason')\n"
        "print('no line end', end='')\n"
        "sys.exit(1)",
        metric_definitions=(MetricDefinition(name="loss", regex=r"loss=(\S+)"),),
    )
    assert agent.wait() == 0
    service = agent.service
    assert "token []" in service.texts
    assert "no line end" in service.texts
    assert service.facts.failure_file == "the reason"
    values = [(metric.name, metric.value) for item in service.lines for metric in item.line.metrics]
    assert values == [("loss", 0.25)]


def test_a_stop_signals_children_of_a_shell_and_waits_for_them(run_agent) -> None:
    # As in SageMaker's toolkit and SDK v3's script: the shell dies of SIGTERM, its child, the trainer, saves its state.
    trainer = (
        "import signal, sys, time\n"
        "def save(*_):\n"
        "    time.sleep(0.5); print('state saved', flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('training', flush=True)\n"
        "while True: time.sleep(0.1)"
    )
    agent = run_agent("/bin/bash", "-c", '"$0" -c "$1"; echo never', sys.executable, trainer)
    agent.service.wait_for_text("training")
    started_s = time.monotonic()
    agent.service.order(OrderKind.STOP, grace_s=30.0, reason="StopTrainingJob")
    facts = agent.service.wait_for_phase(HostPhase.EXITED, 20)
    assert 0.4 < time.monotonic() - started_s < 10.0
    assert "state saved" in agent.service.texts
    assert facts.failure is None
    assert all(item.is_consequence for item in facts.exits)
    assert agent.wait() == 0


def test_a_program_that_ignores_sigterm_is_killed_after_the_grace(run_agent) -> None:
    agent = run_agent("/bin/bash", "-c", "trap '' TERM; echo ready; while true; do sleep 0.1; done")
    agent.service.wait_for_text("ready")
    agent.service.order(OrderKind.STOP, grace_s=0.5)
    facts = agent.service.wait_for_phase(HostPhase.EXITED, 20)
    assert [(item.signal, item.is_consequence) for item in facts.exits] == [(signal.SIGKILL, True)]
    assert agent.wait() == 0


def test_no_log_line_is_lost_when_the_service_is_killed_and_restarted(run_agent) -> None:
    agent = run_agent("/bin/bash", "-c", "for i in $(seq 200); do echo line $i; sleep 0.01; done")
    agent.service.wait_for_text("line 50")
    agent.service.kill()
    time.sleep(1.0)
    agent.service.restart()
    agent.service.wait_for_phase(HostPhase.EXITED, 20)
    lines = [text for text in agent.service.texts if text.startswith("line ")]
    assert lines == [f"line {number}" for number in range(1, 201)]
    assert agent.wait() == 0


def test_sigterm_to_the_agent_ends_the_program(run_agent) -> None:
    agent = run_agent("/bin/bash", "-c", "echo ready; sleep 1000")
    agent.service.wait_for_text("ready")
    agent.process.terminate()
    assert agent.wait() == 143
    assert agent.left_behind() == []
    assert agent.service.facts.phase is HostPhase.RELEASED
    assert agent.service.facts.notice.why == "SIGTERM"


@pytest.mark.long(15)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_an_agent_ends_within_the_notice_and_ignores_repeated_signals(run_agent, number) -> None:
    agent = run_agent("/bin/bash", "-c", "trap '' TERM; echo ready; while true; do sleep 0.1; done", notice_grace_s=6.0)
    agent.service.wait_for_text("ready")
    began_s = time.monotonic()
    for again in (number, signal.SIGCONT, signal.SIGTERM, signal.SIGHUP):
        agent.process.send_signal(again)
    agent.service.wait_for("the notice", lambda service: service.facts.notice is not None)
    assert time.monotonic() - began_s < 1.0, "at once, not with the next heartbeat"
    assert agent.service.facts.notice.why == f"{number.name} from the engine"
    assert agent.wait() == 143
    assert time.monotonic() - began_s < 6.0
    assert [(item.signal, item.is_consequence) for item in agent.service.facts.exits] == [(signal.SIGKILL, True)]


def test_a_program_gets_sigterm_once_if_agent_and_program_are_signalled(run_agent) -> None:
    counter = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'heard\\n'))\n"
        "os.write(1, b'ready\\n')\n"
        "end = time.monotonic() + 2.0\n"
        "while time.monotonic() < end: time.sleep(0.05)\n"
        "os.write(1, b'done\\n')"
    )
    metric = MetricDefinition(name="loss", regex=r"loss=(\S+)")
    agent = run_agent(sys.executable, "-c", counter, notice_grace_s=20.0, metric_definitions=(metric,))
    agent.service.wait_for_text("ready")
    for pid in [agent.process.pid, *sorted(live_descendants(agent.process.pid))]:
        os.kill(pid, signal.SIGTERM)
    agent.service.order(OrderKind.STOP, grace_s=18.0, reason=RECLAIM_REASON)
    assert agent.wait() == 143
    assert agent.service.texts.count("heard") == 1
    assert "done" in agent.service.texts
    assert all(item.is_consequence for item in agent.service.facts.exits)
    assert agent.service.facts.notes == (), "no helper of the agent has ended"


def test_a_killed_agent_leaves_no_program(run_agent) -> None:
    agent = run_agent("/bin/bash", "-c", "trap '' TERM; sleep 1000 & echo ready; wait")
    agent.service.wait_for_text("ready")
    agent.service.wait_for_phase(HostPhase.RUNNING)
    assert len(agent.left_behind()) >= 3  # first process, shell and sleep are found
    agent.process.kill()
    agent.wait()
    deadline_s = time.monotonic() + 10
    while agent.left_behind() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert agent.left_behind() == []


def test_the_end_of_the_attempt_ends_the_program(run_agent) -> None:
    agent = run_agent("/bin/bash", "-c", "trap '' TERM; echo ready; while true; do sleep 0.1; done")
    agent.service.wait_for_text("ready")
    agent.service.end_attempt()
    assert agent.wait() == 0
    assert agent.left_behind() == []


def test_a_missing_interpreter_is_named(tmp_path: Path) -> None:
    plan = agent_plan(tmp_path, command=("/bin/true",))
    plan = replace(plan, environment=replace(plan.environment, python="/no/such/python"))
    with FakeService(plan) as service:
        service.order_at(HostPhase.EXITED, OrderKind.RELEASE, is_last=True)
        agent = AgentUnderTest(service, mark=str(tmp_path / "other"))
        facts = service.wait_for_phase(HostPhase.EXITED)
        assert "/no/such/python" in facts.failure.message
        assert facts.exits == ()
        assert agent.wait() == 0


def test_a_command_line_without_token_is_refused(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(clary.__file__).parents[1])}
    environment.pop("CLARY_AGENT_TOKEN", None)
    options = ("--service", "http://127.0.0.1:1", "--pool", "p", "--job", "j", "--attempt", "1", "--host", "algo-1")
    command = [sys.executable, "-m", "clary.agent", *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20)
    assert done.returncode == 2
    assert "CLARY_AGENT_TOKEN" in done.stderr


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the host is made of namespaces")
def test_a_host_of_namespaces_shows_its_own_files_processes_and_name(run_agent) -> None:
    agent = run_agent(
        "/bin/bash",
        "-c",
        "hostname; ls /opt/ml/input/config; ls -d $HOME; echo pid $$; exit 0",
        isolation=Isolation.NAMESPACES,
    )
    assert agent.wait(40) == 0
    texts = agent.service.texts
    assert agent.service.facts.failure is None, texts
    assert "algo-1" in texts
    assert "hyperparameters.json" in texts
    assert agent.service.facts.exits[0].exit_code == 0
