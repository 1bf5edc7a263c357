"""Protocols of the work that other packages do for the supervisor: `wiring` implements `Steps`; tests use fakes."""

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
    """The receiver of the processes' output; safe from any thread, never waits for the service."""

    def open(self, key: Hashable, *, rank: int | None = None, prefix: str = "") -> None:
        """Set how lines of the stream `key` are marked, before its first bytes.

        Args:
            key: key of the stream, as `on_output` gets it.
            rank: rank of the process that prints; None if lines belong to no rank, or name their rank themselves.
            prefix: text before each line in the log.
        """

    def on_output(self, key: Hashable, data: bytes) -> None:
        """Take bytes of one stream, in order; empty bytes end the stream."""


@dataclass(frozen=True, kw_only=True)
class Uploaded:
    """The parts and objects that an upload has written."""

    staged: tuple[StagedPart, ...] = ()
    uris: tuple[str, ...] = ()
    is_empty: bool = False  # whether it is known that the objects hold no file


class RunningProgram(WatchedProgram, Protocol):
    """The processes of the program on this host."""

    @property
    def not_isolated(self) -> tuple[str, ...]:
        """Sentences on the resources that the program shares with the machine."""

    @property
    def was_signalled(self) -> bool:
        """Whether every process of the host has received a SIGTERM that the agent did not send."""

    def wait_for_exits(self, timeout_s: float) -> Sequence[ProcessExit]:
        """Return the processes that ended since the last call, as soon as one ends; empty after `timeout_s`.

        Returns at once, too, when `was_signalled` becomes true. All output of a returned process has been passed on.
        `is_consequence` is true for processes that were running when `send_signal` or another sender signalled them to
        end.
        """

    def send_signal(self, signum: int) -> None:
        """Signal every running process, also child processes of the program's processes.

        SIGKILL ends every process that does not hang in the kernel.
        """

    def num_live(self) -> int:
        """Return the number of running processes, including child processes of the program's processes."""

    def out_of_memory(self) -> str | None:
        """Return a sentence if the host's memory limit killed a process, or None."""

    def full_disk(self) -> str | None:
        """Return a sentence if the host's disk is full now, or None."""

    def trouble(self) -> ClaryError | None:
        """Return the error because of which the agent ended the program, or lost its host; else None."""

    def close(self) -> None:
        """Kill remaining processes, pass on the last output, free the program's resources; harmless when repeated."""


class Checkpoints(Protocol):
    """The checkpoint folder of this host, `Steps.checkpoints`; only `flush` and `look_now` wait."""

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
            first_pid: PID on this machine of the program's first process.
        """

    def look_now(self, limit_s: float) -> None:
        """Record which files are closed now, before the program is signalled, so that its end is no doubt of them.

        Waits for `limit_s` at most, and raises nothing.
        """

    def flush(self, limit_s: float, *, has_finished: bool) -> Flushed:
        """Store the remaining files after the program's end, and end the mirror; take hardly longer than `limit_s`.

        Args:
            has_finished: whether the program ended with exit code 0; if not, files that its end has cut short are left
                out.
        """

    def shorten(self, limit_s: float) -> None:
        """Limit a running flush to `limit_s` from now."""

    def abort(self) -> None:
        """Abort the mirror and the flush; harmless when repeated."""


class Mirror(Protocol):
    """A folder whose files reach the object store while the program runs; its errors are not raised."""

    @property
    def num_stored(self) -> int:
        """The number of files in the store."""

    @property
    def error(self) -> str:
        """The error of the last round; empty if it succeeded."""

    def forget(self, names: Sequence[str]) -> None:
        """Remove files of earlier attempts from the store before any other is stored. Call it before `start`."""

    def start(self) -> None:
        """Begin to mirror the folder."""

    def opened(self) -> Folder:
        """Open the folder; links are not followed. Raises: OSError."""

    def flush(self) -> None:
        """Store the remaining files at once, after all writing has ended. A call of `finish` may follow later."""

    def wait_stored(self, timeout_s: float) -> bool:
        """Wait, after `flush`, until each file is stored or has failed; return whether further waiting is useless."""

    def finish(self, limit_s: float, *, longest_s: float | None = None) -> bool:
        """Store the remaining files after all writing has ended; return whether every file is stored.

        Args:
            limit_s: the mirror gives up when it has sent nothing for so long.
            longest_s: the mirror gives up after this time in any case; None: after `limit_s`.
        """

    def abort(self) -> None:
        """Abort the mirror; harmless when repeated."""

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end; return whether it did."""


class Steps(Protocol):
    """The work on one host of one attempt, in the order in which it is done.

    The steps of the preparation, up to `prepare_environment`, and `upload` may run for long and are called from threads
    of their own; the others are called from the supervisor's thread, `abort` from any. `build_tree` is called first.
    Then channels are fetched and checkpoints are restored; at the same time the code is fetched (after `code_channel`,
    if there is one), and then the environment is prepared.
    Errors: ClaryError with a fault and a sentence for the user; anything else is a defect of Clary.
    """

    @property
    def channel_names(self) -> tuple[str, ...]:
        """Channels that this host gets."""

    @property
    def code_channel(self) -> str | None:
        """Channel that holds the code; None if no channel holds it."""

    @property
    def ml_folder(self) -> Path:
        """The host's `/opt/ml` on this machine."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings of this host from the work so far."""

    @property
    def summaries(self) -> tuple[str, ...]:
        """Log lines on the data that the preparation has fetched, and its sources."""

    def build_tree(self) -> None:
        """Make `/opt/ml` with its folders and configuration files."""

    def fetch_code(self) -> None:
        """Put the user's code into its folder."""

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
        """Make the program connect to its peers over another interface than the plan's; call it before `start_program`.

        Raises: OSError if the program's configuration cannot be written.
        """

    def make_program_ready(self, log: OutputLog) -> None:
        """Do the part of `start_program` that needs no order to run; raise nothing. A call may be left out.

        `close` frees what it has made if `start_program` is not called.
        """

    def start_program(self, log: OutputLog) -> RunningProgram:
        """Start every process of this host, its output going to `log`."""

    def open_mirrors(self) -> dict[MirrorPlan, Mirror]:
        """Return the mirrors, not yet started, that copy folders to the object store while the program runs."""

    def rule_world(self) -> RuleWorld:
        """Return the world in which rules over the program's tensors run; call it after `start_program`."""

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
            role: whether the host stages its share or writes the final results.
            staged: with LEAD, the parts that the other hosts have staged.
            omits_empty_model: with LEAD, whether to write no archive if no host has a model.
        """

    def abort(self) -> None:
        """Abort a running step, which then raises or whose result is ignored. Call it from any thread."""

    def close(self) -> None:
        """Free the resources of the steps; harmless when repeated."""


MakeSteps = Callable[[LaunchPlan, str], Steps]  # plan, name of the host
