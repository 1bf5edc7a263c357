"""The parts that a host's life needs besides its plan, handed down by `supervisor`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from clary.agent.fact_board import FactBoard
from clary.agent.log.host_log import HostLog
from clary.agent.log.log_shipper import LogReceiver
from clary.agent.metrics.shipper import SampleReceiver
from clary.agent.supervisor.profile_windows import ProfileReceiver
from clary.agent.supervisor.service_watch import Talk
from clary.agent.supervisor.steps import Steps
from clary.agent.training.training_watch import TrainingReceiver
from clary.base.clock import Clock
from clary.contract.launch_plan import LaunchPlan
from clary.contract.stack_dumps import HostDump


class Service(Talk, LogReceiver, SampleReceiver, TrainingReceiver, ProfileReceiver, Protocol):
    """The service as the supervisor sees it; outside of tests this is a `ServiceClient`."""

    def fetch_assignment(self) -> LaunchPlan:
        """Return the plan of this attempt."""

    def send_dump(self, dump: HostDump) -> None:
        """Send a dump of the host's processes."""

    def break_off(self) -> None:
        """Abort every call in flight."""

    def close(self) -> None:
        """Free the connections."""


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The supervisor and the service, as `host_life` and `program_companions` see them.

    Attributes:
        board: facts that are reported to the service.
        log: takes output and the agent's own lines.
        steps: the work itself.
        post: queues a function that the supervisor's thread calls.
        on_signalled: called in that thread when every process of the host has received a SIGTERM that the agent did not
            send.
        is_vain: whether waiting for the service is useless.
        drain_s: how long the end of a host waits for log lines that make no progress.
        drain_most_s: how long the end of a program waits for log lines in all.
        service: receives the data of the program's companions, such as metrics and profiles.
        clock: time of day, for measured values.
    """

    board: FactBoard
    log: HostLog
    steps: Steps
    post: Callable[[Callable[[], None]], None]
    on_signalled: Callable[[], None]
    is_vain: Callable[[], bool]
    drain_s: float
    drain_most_s: float
    service: Service
    clock: Clock
