"""A supervisor that runs in a separate thread while the test observes it."""

from __future__ import annotations

import os
import threading

from fake_steps import FakeProgram, FakeSteps

from clary.agent.service_client import AgentAddress, ServiceClient
from clary.agent.supervisor.supervisor import Limits, Supervisor
from clary.contract.agent_protocol import HostPhase
from clary.testing.fake_service import FakeService

LIMITS = Limits(heartbeat_s=0.1, margin_s=0.2, after_stop_s=0.3, drain_s=2.0, last_report_s=0.3, assignment_s=0.4)


class HostUnderTest:
    """One supervisor in its own thread."""

    def __init__(self, service: FakeService, steps: FakeSteps, *, limits: Limits = LIMITS, token: str = "") -> None:
        self.service = service
        self.steps = steps
        address = AgentAddress(service_url=service.url, job=service.plan.job_name, attempt=1, host="algo-1")
        client = ServiceClient(address, token=token or service.token)
        self.supervisor = Supervisor(client, host="algo-1", make_steps=lambda plan, host: steps, limits=limits)
        self.exit_code: int | None = None
        self._thread = threading.Thread(target=self._run, name="host-under-test", daemon=True)
        self._thread.start()

    @property
    def program(self) -> FakeProgram:
        self.service.wait_for_phase(HostPhase.RUNNING)
        assert self.steps.program is not None
        return self.steps.program

    def join(self, timeout_s: float = 15.0) -> int:
        self._thread.join(timeout_s)
        assert self.exit_code is not None, "the supervisor did not return"
        return self.exit_code

    def _run(self) -> None:
        self.exit_code = self.supervisor.run()


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))
