"""What the life of a host needs besides its plan, handed down by `supervisor`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from clary.agent.fact_board import FactBoard
from clary.agent.log.host_log import HostLog
from clary.agent.metrics.shipper import SampleReceiver
from clary.agent.supervisor.profile_windows import ProfileReceiver
from clary.agent.supervisor.steps import Steps
from clary.agent.training.training_watch import TrainingReceiver
from clary.base.clock import Clock
from clary.contract.stack_dumps import HostDump


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The supervisor and the service, as `host_life` and `program_companions` see them.

    Attributes:
        board: facts, told to the service.
        log: takes output and the agent's own lines.
        steps: the work itself.
        post: has a function called in the supervisor's thread.
        is_vain: whether there is no use in waiting for the service any more.
        drain_s: longest time without progress that log lines get.
        send_dump: hands a dump of the host's processes to the service.
        samples: takes what the host measures of itself.
        training: takes what the program writes of its training.
        profiles: takes profiles of the host's ranks.
        clock: time of day of what is measured.
    """

    board: FactBoard
    log: HostLog
    steps: Steps
    post: Callable[[Callable[[], None]], None]
    is_vain: Callable[[], bool]
    drain_s: float
    send_dump: Callable[[HostDump], None]
    samples: SampleReceiver
    training: TrainingReceiver
    profiles: ProfileReceiver
    clock: Clock
