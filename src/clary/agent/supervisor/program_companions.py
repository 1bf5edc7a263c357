"""All that goes along with the program of one host: what measures it, reads it, watches it and looks at it.

Where: `host_life` holds them and says when the program is about to start, runs and has ended; `supervisor` passes on
what receipts ask for. None of them moves the host from phase to phase, and none ends it by itself.

    measure --> prepare --> [the program starts] --> begin_program --> [it is gone] --> end_program --> settle, finish

`end` breaks off at any time, `close` comes last. Health is not among them: it is the host's, and begins long before the
program.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from clary.agent.autopsy.stack_dumps import StackDumps
from clary.agent.metrics.host_metrics import HostMetrics
from clary.agent.rendezvous.rendezvous_policy import meeting_place
from clary.agent.rendezvous.rendezvous_watch import RendezvousWatch
from clary.agent.supervisor.hang_alarm import HangAlarm
from clary.agent.supervisor.host_debugging import HostDebugging
from clary.agent.supervisor.profile_windows import ProfileWindows
from clary.agent.supervisor.steps import RunningProgram
from clary.agent.supervisor.surroundings import Surroundings
from clary.agent.training.host_training import HostTraining
from clary.contract.agent_protocol import Failure, GpuError
from clary.contract.deep_profiles import window_of
from clary.contract.launch_plan import LaunchPlan

_LAST_FILES_S = 5.0  # for saved tensors of a program that was stopped or has failed: no upload may follow
_PROFILE_S = 10.0  # for traces of a program that has ended; nothing to wait for where none are being taken


class ProgramCompanions:
    """What goes along with one program; methods belong to the supervisor's thread where they do not say otherwise.

    Args:
        plan: says what is wanted.
        host: name of this host.
        around: the service, the facts and the log.
        on_hung: told in words when a program that gets nowhere should be ended; from another thread.
        on_note: told, in a sentence, what a user should know; from any thread.

    Attributes:
        dumps: takes dumps of the host's processes when asked; from any thread.
        profiles: takes profiles of its ranks when asked; from any thread.
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
        self._plan = plan
        self._host = plan.host(host)
        self._around = around
        self._steps = around.steps
        self._metrics = HostMetrics(plan, host=host, board=around.board, service=around.samples, clock=around.clock)
        self._training = HostTraining(
            plan,
            host=host,
            service=around.training,
            progress=around.log.progress,
            clock=around.clock,
            on_note=on_note,
        )
        self.dumps = StackDumps(self._host, send=around.send_dump)
        self.profiles = ProfileWindows(
            self._host.name,
            attempt=plan.attempt,
            window=window_of(plan.config_documents.get("profilerconfig")),
            ml_folder=lambda: around.steps.ml_folder,
            receiver=around.profiles,
        )
        self._hang = HangAlarm(
            plan,
            board=around.board,
            log=around.log,
            take_dump=self.dumps.take_unasked,
            on_hung=on_hung,
            has_gpus=bool(self._host.resources.gpu_indices),
        )
        self._rendezvous: RendezvousWatch | None = None
        self._debugging = HostDebugging(plan, host=host, board=around.board, steps=around.steps, say=around.log.say)

    def measure(self) -> None:
        """Begin to measure the host, whose program may be far off."""
        self._metrics.start()

    def measure_every(self, interval_s: float) -> None:
        """Have the host measured so often from now on; from any thread."""
        self._metrics.measure_every(interval_s)

    def take_note_of_service(self, *, is_away: bool) -> None:
        """Spare the program its requests to a service that does not answer; from any thread."""
        self._training.take_note_of_service(is_away=is_away)

    def prepare(self) -> None:
        """Leave what the program is to find, and note what stands before it writes."""
        self.profiles.begin()
        self._training.prepare(self._steps.ml_folder)

    def begin_program(self, program: RunningProgram) -> None:
        """Begin with a program that has just been started."""
        self._debugging.begin()
        self.dumps.watch(program.init_pid, program.ranks_by_pid, self._steps.ml_folder)
        self.profiles.watch(program.ranks_by_pid)
        self._hang.start(program.init_pid)
        place = meeting_place(self._plan, self._host, num_processes=program.num_processes)
        self._rendezvous = RendezvousWatch(place, board=self._around.board)
        self._rendezvous.start(program.init_pid)
        self._training.begin_program()
        self._metrics.begin_program(program.init_pid, program.ranks_by_pid(), self._steps.ml_folder)

    def blame_hang(self, words: str) -> None:
        """Take note that the program is ended because it hangs."""
        self._hang.blame(words)
        self._metrics.keep_gpu_errors()

    @property
    def hang_failure(self) -> Failure | None:
        """What `blame_hang` was told, as a failure; None for a program that was not ended for it."""
        return self._hang.failure

    def keep_gpu_errors(self) -> None:
        """Take note of what the driver has told before the program failed."""
        self._metrics.keep_gpu_errors()

    def gpu_errors(self) -> tuple[GpuError, ...]:
        """Return what the driver has told of this host's GPUs so far."""
        return self._metrics.gpu_errors()

    def end_program(self) -> None:
        """Every process of the program is gone; what is taken of its ranks is waited for, for `_PROFILE_S`."""
        self._hang.close()
        self.dumps.forget()
        self.profiles.end_program(_PROFILE_S)
        if self._rendezvous is not None:
            self._rendezvous.close()
        self._debugging.end_program()
        self._metrics.end_program()
        self._training.end_program()

    def store_saved(self) -> None:
        """Wait for what the program has saved to be stored, where no upload may follow; for `_LAST_FILES_S`."""
        self._debugging.settle(_LAST_FILES_S, give_up=self._around.is_vain)

    def hurry(self) -> None:
        """Have rows of metrics sent now; `settle` waits for that."""
        self._metrics.hurry()

    def settle(self, last_rows_s: float) -> None:
        """Wait until the last rows, `last_rows_s` from `hurry` at most, and the last values are sent."""
        self._metrics.settle(last_rows_s)
        self._training.settle(self._around.is_vain)

    def finish(self) -> tuple[str, ...]:
        """Wait until rules and saved files are done with; return what is not, in sentences. Of the upload's thread."""
        return self._debugging.finish()

    def end(self) -> None:
        """Break off everything; harmless when repeated."""
        self._hang.close()
        if self._rendezvous is not None:
            self._rendezvous.close()
        self._metrics.end()
        self._debugging.end()
        self._training.end()

    def close(self, timeout_s: float) -> bool:
        """Free everything, after `end`; return whether what has a limit has ended within `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        has_ended = self._metrics.join(timeout_s)
        has_ended = self._debugging.join(max(0.0, deadline_s - time.monotonic())) and has_ended
        has_ended = self._training.join(max(0.0, deadline_s - time.monotonic())) and has_ended
        self.dumps.close()
        self.profiles.close()
        return has_ended
