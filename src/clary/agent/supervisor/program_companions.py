"""The companions of one host's program: they measure it, read its files, watch it and profile it.

Where: `host_life` has them and calls them before the start, after the start and after the end of the program;
`supervisor` forwards the requests in receipts. No companion changes the host's phase or ends the host. `companion`
defines the order of the calls. Measurements begin before `prepare`. Health is no companion: it belongs to the host, and
begins long before the program.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from clary.agent.autopsy.stack_dumps import StackDumps
from clary.agent.companion import Companion
from clary.agent.metrics.host_metrics import HostMetrics
from clary.agent.rendezvous.rendezvous_policy import meeting_place
from clary.agent.rendezvous.rendezvous_watch import RendezvousWatch
from clary.agent.supervisor.hang_alarm import HangAlarm
from clary.agent.supervisor.host_debugging import HostDebugging
from clary.agent.supervisor.profile_windows import ProfileWindows
from clary.agent.supervisor.steps import RunningProgram
from clary.agent.supervisor.surroundings import Surroundings
from clary.agent.training.host_training import HostTraining
from clary.contract.deep_profiles import window_of
from clary.contract.launch_plan import LaunchPlan


class ProgramCompanions:
    """The companions of one program; methods are for the supervisor's thread, unless they say otherwise.

    Args:
        plan: of the attempt; determines the wanted companions.
        host: name of this host.
        around: the service, the facts and the log.
        on_hung: called from another thread, with the reason, to end a program without progress.
        on_note: called with a sentence for users; from any thread.

    Attributes:
        metrics: also measures the host, from `start` on.
        training: reads values of the program.
        dumps: takes dumps of the host's processes on request; from any thread.
        profiles: takes profiles of the program's ranks on request; from any thread.
        hang: raises the alarm about a program without progress.
        debugging: mirrors saved tensors and runs rules over them.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        *,
        host: str,
        around: Surroundings,
        on_hung: Callable[[str], None],
        on_note: Callable[[str], None],
    ) -> None:
        self._around = around
        its_plan = plan.host(host)
        self.metrics = HostMetrics(plan, host=host, board=around.board, service=around.service, clock=around.clock)
        self.training = HostTraining(
            plan,
            host=host,
            service=around.service,
            progress=around.log.progress,
            clock=around.clock,
            on_note=on_note,
        )
        self.dumps = StackDumps(its_plan, send=around.service.send_dump)
        self.profiles = ProfileWindows(
            host,
            attempt=plan.attempt,
            window=window_of(plan.config_documents.get("profilerconfig")),
            ml_folder=lambda: around.steps.ml_folder,
            receiver=around.service,
        )
        self.hang = HangAlarm(
            plan,
            board=around.board,
            log=around.log,
            take_dump=self.dumps.take_unasked,
            on_hung=on_hung,
            has_gpus=bool(its_plan.resources.gpu_indices),
        )
        self.debugging = HostDebugging(plan, host=host, board=around.board, steps=around.steps, say=around.log.say)
        rendezvous = RendezvousWatch(
            lambda num_processes: meeting_place(plan, its_plan, num_processes=num_processes), board=around.board
        )
        self._all: tuple[Companion, ...] = (
            self.hang,
            rendezvous,
            self.debugging,
            self.training,
            self.metrics,
            self.dumps,
            self.profiles,
        )

    def prepare(self) -> None:
        """Write the files that the program reads, and record which files exist before it writes."""
        for companion in self._all:
            companion.prepare(self._around.steps.ml_folder)

    def begin(self, program: RunningProgram) -> None:
        """Start the companions for a program that has just been started."""
        for companion in self._all:
            companion.begin(program, self._around.steps.ml_folder)

    def ended(self) -> None:
        """Record that every process of the program has ended."""
        for companion in self._all:
            companion.ended()

    def flush(self, limit_s: float) -> None:
        """Start to send all measurements so far, metric rows within `limit_s`; `wait_flushed` waits for this."""
        for companion in self._all:
            companion.flush(limit_s)

    def wait_flushed(self) -> None:
        """Wait until the last rows and values are sent, or their time limit has passed."""
        for companion in self._all:
            companion.wait_flushed(self._around.is_vain)

    def abort(self) -> None:
        """Abort all companions; a second call does nothing."""
        for companion in self._all:
            companion.abort()

    def close(self, timeout_s: float) -> bool:
        """Free all resources after `abort`; return whether threads have ended within `timeout_s`.

        Threads of dumps and profiles do not count: a dump that hangs in the kernel ends with the agent's process.
        """
        deadline_s = time.monotonic() + timeout_s
        has_ended = True
        for companion in self._all:
            has_ended = companion.close(max(0.0, deadline_s - time.monotonic())) and has_ended
        return has_ended
