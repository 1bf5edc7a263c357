"""An agent is killed while its service cannot accept lines: the lines in its spool reach the log."""

import os
import signal
import time

import pytest
from boto3_clients import job_request, unique, wait
from log_events import events_of
from program_jobs import start

from clary.base.processes import ProcessId
from clary.control.state_folder import StateFolder

pytestmark = [pytest.mark.timeout(180), pytest.mark.xdist_group("log-salvage")]


def agent_of(job):
    """Return the process of a job's only agent."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if b"clary.agent" in words and job.encode() in words:
            return int(name)
    raise AssertionError(f"no agent of {job} runs")


def test_lines_spooled_by_a_killed_agent_while_the_service_is_frozen_are_kept(service, aws):
    name = start(aws, job_request(unique("salvage"), "echo ready; for i in $(seq 60); do echo n$i; sleep 0.1; done"))
    wait(aws, name, until=("Training",))
    deadline = time.monotonic() + 60
    while "ready" not in events_of(aws, name) and time.monotonic() < deadline:
        time.sleep(0.1)
    record = StateFolder(service.home).read_service_record()
    assert ProcessId.of(record.pid) == record.process
    os.kill(record.pid, signal.SIGSTOP)
    try:
        time.sleep(2.0)
        os.kill(agent_of(name), signal.SIGKILL)
    finally:
        os.kill(record.pid, signal.SIGCONT)
    facts = wait(aws, name, timeout_s=60)
    assert facts["TrainingJobStatus"] == "Failed"
    deadline = time.monotonic() + 60
    while not any("ended without leave: " in text for text in events_of(aws, name)) and time.monotonic() < deadline:
        time.sleep(0.2)
    texts = events_of(aws, name)
    numbers = [int(text[1:]) for text in texts if text[:1] == "n" and text[1:].isdigit()]
    assert numbers == list(range(1, len(numbers) + 1))
    notice = next(text for text in texts if text.startswith("clary: the agent of algo-1 ended without leave: "))
    num_salvaged = int(notice.partition("leave: ")[2].split()[0])
    assert num_salvaged >= 10, "two seconds of ten lines each, less what was on its way"
