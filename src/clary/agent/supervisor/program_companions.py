"""The companions of one host's program, which measure it, read its files, watch it and profile it.

Where: `host_life` holds them and says when the program is about to start, runs and has ended; `supervisor` passes on
the requests of receipts. No companion moves the host from phase to phase or ends it by itself. `companion` defines the
order of the calls. Measuring begins before `prepare`; health is no companion: it belongs to the host, and begins long
before the program.
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
    """The companions of one program; methods belong to the supervisor's thread unless they say otherwise.

    Args:
        plan: says which companions are wanted.
        host: name of this host.
        around: the service, the facts and the log.
        on_hung: called with the reason to end a program without progress; from another thread.
        on_note: called with a sentence for the user; from any thread.

    Attributes:
        metrics: measures the host, too, from `start` on.
        training: reads values of the program.
        dumps: takes dumps of the host's processes when asked; from any thread.
        profiles: takes profiles of its ranks when asked; from any thread.
        hang: raises the alarm over a program without progress.
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
        """Write the files that the program reads, and record the files that exist before it writes."""
        for companion in self._all:
            companion.prepare(self._around.steps.ml_folder)

    def begin(self, program: RunningProgram) -> None:
        """Begin with a program that has just been started."""
        for companion in self._all:
            companion.begin(program, self._around.steps.ml_folder)

    def ended(self) -> None:
        """Take note that every process of the program is gone."""
        for companion in self._all:
            companion.ended()

    def flush(self, limit_s: float) -> None:
        """Begin to send everything measured so far, rows of metrics within `limit_s`; `wait_flushed` waits for it."""
        for companion in self._all:
            companion.flush(limit_s)

    def wait_flushed(self) -> None:
        """Wait until the last rows and values are sent, or their time limit has passed."""
        for companion in self._all:
            companion.wait_flushed(self._around.is_vain)

    def abort(self) -> None:
        """Break off everything; harmless when repeated."""
        for companion in self._all:
            companion.abort()

    def close(self, timeout_s: float) -> bool:
        """Free everything, after `abort`; return whether threads have ended within `timeout_s`.

        Dumps and profiles count as ended: a dump that hangs in the kernel ends with the process.
        """
        deadline_s = time.monotonic() + timeout_s
        has_ended = True
        for companion in self._all:
            has_ended = companion.close(max(0.0, deadline_s - time.monotonic())) and has_ended
        return has_ended
