"""Protocols of the work that other packages do for the supervisor: `wiring` implements them; tests use fakes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from clary.agent.checkpoints.outcomes import Flushed, Listeners
from clary.agent.companion import WatchedProgram
from clary.agent.rules.rule_processes import RuleWorld
from clary.base.beneath import Folder
from clary.base.errors import ClaryError
from clary.contract.agent_protocol import CheckpointFacts, Clue, ProcessExit, StagedPart, UploadRole
from clary.contract.job_rules import MirrorPlan
from clary.contract.launch_plan import LaunchPlan


class OutputLog(Protocol):
    """Where processes' output goes; safe from any thread, never waits for the service."""

    def open(self, key: Hashable, *, rank: int | None = None, prefix: str = "") -> None:
        """Set how lines of the stream `key` are marked, before its first bytes.

        Args:
            key: of the stream, as `on_output` gets it.
            rank: of the process that prints; None where lines belong to no rank, or name it themselves.
            prefix: stands before each line in the log.
        """

    def on_output(self, key: Hashable, data: bytes) -> None:
        """Take bytes of one stream, in order; empty bytes end it."""


@dataclass(frozen=True, kw_only=True)
class Uploaded:
    """The parts and objects that an upload has written."""

    staged: tuple[StagedPart, ...] = ()
    uris: tuple[str, ...] = ()


class RunningProgram(WatchedProgram, Protocol):
    """The processes of the program on this host."""

    @property
    def not_isolated(self) -> tuple[str, ...]:
        """Sentences on everything that the program shares with the machine."""

    @property
    def was_signalled(self) -> bool:
        """Whether every process of the host has had a SIGTERM that is not the agent's."""

    def wait_for_exits(self, timeout_s: float) -> Sequence[ProcessExit]:
        """Return the processes that ended since the last call, at the first such end; empty after `timeout_s`.

        Returns at once, too, when `was_signalled` becomes true. All output of a returned process has been passed on.
        `is_consequence` is true for processes that ran when they were signalled to end, by `send_signal` or another
        sender.
        """

    def send_signal(self, signum: int) -> None:
        """Signal every running process, also child processes of the program's.

        SIGKILL ends them for certain, unless they hang in the kernel.
        """

    def num_live(self) -> int:
        """Return the number of running processes, including child processes of the program's."""

    def out_of_memory(self) -> str | None:
        """Return a sentence if the host's memory limit killed a process, or None."""

    def full_disk(self) -> str | None:
        """Return a sentence if the host's disk is full now, or None."""

    def trouble(self) -> ClaryError | None:
        """Return the error because of which the agent ended the program, or lost its host; else None."""

    def close(self) -> None:
        """Kill remaining processes, pass on the last output, free the program's resources; harmless when repeated."""


class Checkpoints(Protocol):
    """The checkpoint folder of this host; `restore_checkpoints` comes first; only `flush` waits."""

    @property
    def summary(self) -> str:
        """The result of the restore, in a line for the log."""

    @property
    def facts(self) -> CheckpointFacts:
        """The facts of checkpoints after the restore."""

    @property
    def is_mirroring(self) -> bool:
        """Whether `start` was called and neither `flush` nor `abort` has ended the mirror."""

    def watch(self, note: Callable[[str], None]) -> None:
        """Begin to watch the folder, before the program starts, so that no write is missed."""

    def start(self, listeners: Listeners, *, first_pid: int | None) -> None:
        """Begin to mirror the folder.

        Args:
            first_pid: first process of the program, as this machine numbers it.
        """

    def flush(self, limit_s: float, *, has_finished: bool) -> Flushed:
        """Store the rest after the program has ended, and end; takes hardly longer than `limit_s`.

        Args:
            has_finished: whether the program ended with 0; else files that its end has cut short are left out.
        """

    def shorten(self, limit_s: float) -> None:
        """Limit a running flush to `limit_s` from now."""

    def abort(self) -> None:
        """Break off the mirror and the flush; harmless when repeated."""


class Mirror(Protocol):
    """A folder whose files reach the object store while the program runs; its errors are not raised."""

    @property
    def num_stored(self) -> int:
        """How many files are in the store."""

    @property
    def error(self) -> str:
        """The error of the last round; empty if it succeeded."""

    def forget(self, names: Sequence[str]) -> None:
        """Remove files of earlier attempts from the store before any other is stored. Call it before `start`."""

    def start(self) -> None:
        """Begin."""

    def opened(self) -> Folder:
        """Open the folder; links are not followed. Raises: OSError."""

    def flush(self) -> None:
        """Store the rest at once, after all writing has ended. `finish` comes later, or never."""

    def wait_stored(self, timeout_s: float) -> bool:
        """Wait, after `flush`, until all files are stored or cannot be; return whether further waiting is useless."""

    def finish(self, limit_s: float) -> bool:
        """Store the rest after all writing has ended; return whether everything is stored."""

    def abort(self) -> None:
        """Break everything off; harmless when repeated."""

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end; return whether it did."""


class Steps(Protocol):
    """The work on one host of one attempt, in the order in which it is done.

    Each method may run for long and is called from a thread of its own. `build_tree` comes first; then channels are
    fetched and checkpoints restored at the same time as code (after `code_channel`, if there is one) and, after the
    code, the environment.
    Errors: ClaryError with a fault and a sentence for the user; anything else is a defect of Clary.
    """

    @property
    def channel_names(self) -> tuple[str, ...]:
        """Channels that this host gets."""

    @property
    def code_channel(self) -> str | None:
        """Channel that holds the code; None when code comes from elsewhere."""

    @property
    def ml_folder(self) -> Path:
        """The host's `/opt/ml` on this machine."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings of this host from the work so far."""

    @property
    def summaries(self) -> tuple[str, ...]:
        """Lines for the log on the data that the preparation has brought, and where it came from."""

    def build_tree(self) -> None:
        """Make `/opt/ml` with its folders and configuration files."""

    def fetch_code(self) -> None:
        """Put the user's code in its place."""

    def fetch_channel(self, name: str) -> None:
        """Fetch the data of one channel."""

    @property
    def checkpoints(self) -> Checkpoints | None:
        """The checkpoint folder, after `build_tree`; None for a job without CheckpointConfig."""

    def restore_checkpoints(self) -> None:
        """Fetch the checkpoints of earlier attempts and jobs."""

    def prepare_environment(self) -> None:
        """Make the program's Python environment ready."""

    def use_interface(self, name: str) -> None:
        """Make the program meet its peers on another interface than the plan's; call it before `start_program`.

        Raises: OSError if the program's configuration cannot be written.
        """

    def start_program(self, log: OutputLog) -> RunningProgram:
        """Start every process of this host, its output going to `log`."""

    def open_mirrors(self) -> dict[MirrorPlan, Mirror]:
        """Return the mirrors that bring folders to the object store while the program runs; not started."""

    def rule_world(self) -> RuleWorld:
        """Return where rules over the program's tensors run; call it after `start_program`."""

    def error_records(self) -> tuple[Clue, ...]:
        """Return the records that ranks have left of their failures."""

    def announce_stop(self, *, reason: str, grace_s: float) -> None:
        """Leave a notice for the program that it is about to be stopped, and when it will be killed.

        Raises: OSError if the notice cannot be written.
        """

    def failure_file(self) -> str | None:
        """Return the text of the program's failure file, or None without one."""

    def upload(self, role: UploadRole, staged: Sequence[StagedPart], *, omits_empty_model: bool = False) -> Uploaded:
        """Write this host's share of the results.

        Args:
            role: whether the host puts its share aside or writes the whole.
            staged: with LEAD, the parts that the other hosts have put aside.
            omits_empty_model: with LEAD, whether no archive is written where no host has a model.
        """

    def abort(self) -> None:
        """Break off a running step, which then raises or is ignored. Call it from any thread."""

    def close(self) -> None:
        """Free the resources of the steps; harmless when repeated."""


MakeSteps = Callable[[LaunchPlan, str], Steps]  # plan, name of the host
