"""The program while it runs: ends of its processes, signals to end them, and the meaning of both.

Where: `host_life` holds one `ProgramWatch` from the start of the program until its last process is gone. The watch
owns the thread that waits for exits; their meaning is decided in the supervisor's own thread.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Sequence

from clary.agent.supervisor.failures import failure_of
from clary.agent.supervisor.steps import RunningProgram
from clary.base.errors import ClaryError, Fault
from clary.base.signal_names import signal_name
from clary.contract.agent_protocol import Failure, ProcessExit
from clary.contract.failure_reasons import OUT_OF_MEMORY
from clary.contract.stop_limits import KILL_TIMEOUT_S

_POLL_S = 1.0
_LIVE_POLL_S = 0.1
# The SIGTERM that ended a process may come from an engine, whose signal to the host's first process comes moments
# later.
_ECHO_S = 0.25
_SIGNAL_BASE = 128  # a shell's exit code for a process that a signal ended is this plus the signal's number

logger = logging.getLogger(__name__)


class ProgramWatch:
    """Watches one program.

    Threads: callbacks come from the watch's own thread; every method belongs to the supervisor's.

    Args:
        program: the running program.
        on_exits: called with the processes that have ended, each once.
        on_gone: called when all processes have ended; after `stop` or a signal from outside, when their child processes
            have ended, too.
        on_broken: called when the wait for exits itself failed.
        on_signalled: called once, before any exit that follows, when every process has received a signal that the agent
            did not send.
    """

    def __init__(
        self,
        program: RunningProgram,
        *,
        on_exits: Callable[[Sequence[ProcessExit]], None],
        on_gone: Callable[[], None],
        on_broken: Callable[[Exception], None],
        on_signalled: Callable[[], None] = lambda: None,
    ) -> None:
        self.program = program
        self.exits: list[ProcessExit] = []
        self.started_at_s = time.monotonic()
        self.due_at_s: float | None = None  # monotonic time at which the grace, or the wait after a kill, ends
        self.is_beyond_killing = False
        self._on_exits = on_exits
        self._on_gone = on_gone
        self._on_broken = on_broken
        self._on_signalled = on_signalled
        self._was_signalled = False  # used by the watch's thread alone
        self.is_stopping = False  # whether the processes were signalled to end
        self._is_killed = False
        self._out_of_memory: str | None = None
        self.full_disk: str | None = None  # known after `close`
        self._trouble: ClaryError | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="program-watch", daemon=True)

    def start(self) -> None:
        """Begin to wait for exits."""
        self._thread.start()

    @property
    def num_left(self) -> int:
        """The number of processes that have not ended."""
        return self.program.num_processes - len(self.exits)

    def stop(self, grace_s: float) -> None:
        """Signal SIGTERM to every process at once and set the time of the kill; a second stop can only make it earlier.

        With a grace of 0 no SIGTERM is sent: every process is killed.
        """
        if self.would_kill_sooner(grace_s):
            self.due_at_s = time.monotonic() + grace_s
        if not self.is_stopping:
            self.is_stopping = True
            if grace_s > 0:
                self.program.send_signal(signal.SIGTERM)

    def would_kill_sooner(self, grace_s: float) -> bool:
        """Return whether a stop with this grace makes the kill earlier, or is the first stop."""
        return not self._is_killed and (self.due_at_s is None or time.monotonic() + grace_s < self.due_at_s)

    @property
    def is_kill_due(self) -> bool:
        """Whether the next `act_if_due` kills every process."""
        return not self._is_killed and self.due_at_s is not None and time.monotonic() >= self.due_at_s

    def act_if_due(self) -> str | None:
        """Kill every process if the grace has ended; return a log sentence on the kill, or None.

        Processes that are alive `KILL_TIMEOUT_S` after SIGKILL (they wait for a disk or file system that hangs) are
        given up.
        """
        if self.due_at_s is None or time.monotonic() < self.due_at_s:
            return None
        if self._is_killed:
            self.due_at_s = None
            self.is_beyond_killing = True
            return f"processes are still there {KILL_TIMEOUT_S:g} s after SIGKILL; they are left behind"
        self._is_killed = True
        self.due_at_s = time.monotonic() + KILL_TIMEOUT_S
        self.program.send_signal(signal.SIGKILL)
        return "the grace has ended: SIGKILL was sent to every remaining process"

    def take(self, exits: Sequence[ProcessExit]) -> ProcessExit | None:
        """Record exits; return the first failure that is not the agent's doing, or None."""
        self.exits += exits
        return self.first_failure()

    def first_failure(self) -> ProcessExit | None:
        """Return the earliest exit that is a failure and not the agent's doing."""
        own = [item for item in self.exits if item.exit_code != 0 and not item.is_consequence]
        return min(own, key=lambda item: item.ended_at, default=None)

    def failure(self) -> Failure | None:
        """Return why the program failed, after `close`; None if it did not fail, or was stopped."""
        if self._trouble is not None:
            return failure_of(self._trouble)
        first = self.first_failure()
        if first is None:
            # A launcher's server ends with exit code 0 even if ranks on its host have failed. If the memory limit
            # killed ranks, the service, which knows all hosts, decides whether the job has failed.
            starved = self._out_of_memory
            if starved is None:
                return None
            return Failure(fault=Fault.ALGORITHM.value, message=f"{OUT_OF_MEMORY}: {starved}")
        who = "the program" if first.rank is None else f"rank {first.rank}"
        if self._out_of_memory is not None:
            message = f"{OUT_OF_MEMORY}: {self._out_of_memory}"
        elif first.exit_code is not None:
            message = f"{who} ended with exit code {first.exit_code}"
        else:
            message = f"{who} was ended by {signal_name(first.signal)}"
        exit_code = first.exit_code if first.exit_code is not None else _SIGNAL_BASE + (first.signal or 0)
        return Failure(fault=Fault.ALGORITHM.value, message=message, exit_code=exit_code)

    def close(self) -> None:
        """End the thread, the program and the processes that it left behind; record unreported exits."""
        self._stopping.set()
        self._out_of_memory = self.program.out_of_memory()
        self.full_disk = self.program.full_disk()
        self._trouble = self.program.trouble()
        self.program.close()
        if self._thread.ident is not None:
            self._thread.join(2 * _POLL_S)
        self.take(self.program.wait_for_exits(0.0))

    def _run(self) -> None:
        try:
            num_left = self.program.num_processes
            while num_left and not self._stopping.is_set():
                exits = self.program.wait_for_exits(_POLL_S)
                num_left -= len(exits)
                if any(_is_by_sigterm(item) for item in exits) and not self.program.was_signalled:
                    self._stopping.wait(_ECHO_S)
                if self.program.was_signalled and not self._was_signalled:
                    self._was_signalled = True
                    self._on_signalled()
                if exits:
                    self._on_exits(exits)
            # A shell dies of SIGTERM at once, and its script's processes may still be saving their state.
            while (self.is_stopping or self._was_signalled) and not self._is_killed and self.program.num_live():
                if self._stopping.wait(_LIVE_POLL_S):
                    break
            self._on_gone()
        except Exception as error:  # boundary: agent supervisor; the supervisor ends the host then
            logger.exception("the wait for the program failed")
            self._on_broken(error)


def _is_by_sigterm(item: ProcessExit) -> bool:
    """Whether a SIGTERM that the agent did not send has ended a process."""
    return not item.is_consequence and (
        item.signal == signal.SIGTERM or item.exit_code == _SIGNAL_BASE + signal.SIGTERM
    )


def exit_in_words(item: ProcessExit) -> str:
    """Return how a process ended: `exit code 3` or `signal 9 (SIGKILL)`, and whether it ended by itself."""
    how = f"exit code {item.exit_code}" if item.exit_code is not None else signal_name(item.signal)
    return f"{how}, not by itself" if item.is_consequence else how
