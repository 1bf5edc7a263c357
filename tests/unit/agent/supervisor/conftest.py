"""A fake service, and hosts that must leave no thread, process or descriptor."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from fake_steps import FakeSteps
from host_under_test import HostUnderTest, open_descriptors

from clary.agent.supervisor.supervisor import EXIT_FAILED
from clary.testing.fake_service import FakeService
from clary.testing.launch_plans import make_plan


@pytest.fixture
def service(tmp_path: Path):
    plan = make_plan(work_folder=str(tmp_path / "jobs" / "job-1" / "1"), warnings=("there is no distribution",))
    with FakeService(plan) as service:
        yield service


@pytest.fixture
def host_of(service: FakeService):
    threads_before = set(threading.enumerate())
    descriptors_before = open_descriptors()
    hosts: list[HostUnderTest] = []

    def build(steps: FakeSteps | None = None, **changes: object) -> HostUnderTest:
        hosts.append(HostUnderTest(service, steps or FakeSteps(), **changes))
        return hosts[-1]

    yield build
    for host in hosts:
        host.join()
        assert host.steps.is_closed or host.exit_code == EXIT_FAILED or host.steps.program is None
        if host.steps.program is not None:
            assert host.steps.program.is_closed
    service.kill()
    # Threads and descriptors of the fake service end shortly after it.
    deadline_s = time.monotonic() + 5
    while time.monotonic() < deadline_s and (
        set(threading.enumerate()) - threads_before or open_descriptors() - descriptors_before
    ):
        time.sleep(0.01)
    assert set(threading.enumerate()) - threads_before == set()
    assert open_descriptors() - descriptors_before == set()
