"""Adapter of `clary.agent.host.Program` for the supervisor, with the feeders of the program's pipes."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from clary.agent.channels import PipeFeeder
from clary.agent.host.program import Program
from clary.agent.host.sandbox import Sandbox
from clary.agent.metrics.memory_watch import watch_memory
from clary.base.disk_space import free_bytes
from clary.base.errors import AgentError, ClaryError, Fault
from clary.contract.agent_protocol import ProcessExit
from clary.contract.failure_reasons import FULL_DISK, OUT_OF_MEMORY

_POLL_S = 0.1  # longest delay until the exit of one of several processes is seen
_MIB = 1024 * 1024
_FULL_BYTES = _MIB  # a disk with less free space counts as full: the failed write may have needed more than this space

logger = logging.getLogger(__name__)


class HostProgram:
    """The program of one host; implements `steps.RunningProgram`.

    Args:
        program: the running program.
        sandbox: the program's host; a watch enforces its memory limit if the kernel does not.
        num_processes: number of processes at the start.
        places: the program's names of folders that can become full -> path on this machine.
        feeders: feed the program's pipes; if a feeder fails, the program is ended.
    """

    def __init__(
        self,
        program: Program,
        sandbox: Sandbox,
        *,
        num_processes: int,
        places: Mapping[str, Path],
        feeders: Sequence[PipeFeeder],
    ) -> None:
        self.num_processes = num_processes
        self._program = program
        self._resources = sandbox.resources
        self._places = dict(places)
        self._feeders = feeders
        self._seen: set[ProcessExit] = set()
        self._was_signalled = False  # the last reported value
        self._trouble: ClaryError | None = None
        self._watch = watch_memory(program, sandbox, self._end_for_excess)

    @property
    def init_pid(self) -> int | None:
        """Pid of the program's first process on this machine."""
        return self._program.init_pid or None

    @property
    def not_isolated(self) -> tuple[str, ...]:
        """Sentences about everything that the program shares with the machine."""
        return self._program.not_isolated

    @property
    def was_signalled(self) -> bool:
        """Whether every process of the host has received a SIGTERM that the agent did not send."""
        return self._program.was_signalled

    @property
    def has_succeeded(self) -> bool:
        """Whether every process has ended with 0, and neither the agent nor an outside signal ended the program."""
        return (
            len(self._seen) >= self.num_processes
            and all(item.exit_code == 0 for item in self._seen)
            and self._trouble is None
            and not self._was_signalled
        )

    def ranks_by_pid(self) -> dict[int, int]:
        """Return pid on this machine -> rank, for running ranks."""
        return self._program.ranks_by_pid()

    def wait_for_exits(self, timeout_s: float) -> Sequence[ProcessExit]:
        """Wait for an exit; return the processes that ended since the last call; empty after `timeout_s`.

        It also returns as soon as `was_signalled` becomes True.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            exits = [item for item in self._program.exits() if item not in self._seen]
            is_news = self._program.was_signalled and not self._was_signalled
            left_s = deadline_s - time.monotonic()
            if exits or is_news or left_s <= 0:
                self._was_signalled = self._was_signalled or is_news
                self._seen.update(exits)
                return exits
            self._end_if_starved()
            self._program.wait(min(left_s, _POLL_S))

    def send_signal(self, signum: int) -> None:
        """Signal every live process of the program; after SIGKILL wait for their end."""
        if signum != signal.SIGKILL:
            self._program.signal_all(signum)
            return
        try:
            self._program.kill()
        except AgentError as error:
            logger.error("%s", error)

    def num_live(self) -> int:
        """Return the number of running processes, child processes included."""
        return self._program.signal_all(0)

    def out_of_memory(self) -> str | None:
        """Return a sentence if the host's memory limit killed a process, or None."""
        result = self._program.wait(0.0)
        limit_bytes = self._resources.memory_bytes
        if result is None or not result.oom_kills or limit_bytes is None:
            return None
        advice = self._resources.memory_advice or "let the program use less of it"
        return (
            f"the host's memory limit of {limit_bytes // _MIB} MiB was reached and {result.oom_kills} of its"
            f" processes were killed; {advice}"
        )

    def full_disk(self) -> str | None:
        """Return a sentence if the host's disk is full now, or None."""
        for names, path in self._places.items():
            free = free_bytes(path)
            if free < _FULL_BYTES:
                return f"{FULL_DISK}: the disk of this host is full ({free} bytes free for {names})"
        return None

    def trouble(self) -> ClaryError | None:
        """Return the error by which the agent ended the program or lost its host; else None."""
        if self._trouble is not None:
            return self._trouble
        result = self._program.wait(0.0)
        if result is None or not result.lost_why:
            return None
        if (starved := self.out_of_memory()) is not None:
            return AgentError(f"{OUT_OF_MEMORY}: {starved}", fault=Fault.ALGORITHM)
        return AgentError(result.lost_why, retryable=True)

    def close(self) -> None:
        """Kill remaining processes, pass on the last output, free all resources; a second call does nothing."""
        if self._watch is not None:
            self._watch.close()
        self._program.close()
        for feeder in self._feeders:
            feeder.stop()

    def _end_for_excess(self, words: str) -> None:
        """End the program because it used too much memory; called in the watch's thread."""
        if self._trouble is None:
            self._trouble = AgentError(f"{OUT_OF_MEMORY}: {words}", fault=Fault.ALGORITHM)
            self.send_signal(signal.SIGKILL)

    def _end_if_starved(self) -> None:
        """End the program if a feeder has failed, because it would wait for the data for ever."""
        failures = [feeder.failure for feeder in self._feeders if feeder.failure is not None]
        if failures and self._trouble is None:
            self._trouble = failures[0]
            self.send_signal(signal.SIGKILL)
