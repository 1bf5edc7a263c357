"""Fakes of parts that the supervisor drives: a program whose processes the test controls, and steps that can block."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from clary.agent.supervisor.steps import OutputLog, Uploaded
from clary.base.errors import ClaryError
from clary.contract.agent_protocol import Clue, ProcessExit, StagedPart, UploadRole


class FakeProgram:
    """Processes that end when the test or a signal ends them.

    Args:
        num_processes: number of ranks, counted from 0.
        ends_on_sigterm: whether SIGTERM ends a process; false is a process with a handler.
    """

    init_pid = 4242
    not_isolated = ("a fake is not isolated at all",)

    def __init__(self, log: OutputLog, *, num_processes: int = 1, ends_on_sigterm: bool = True) -> None:
        self.num_processes = num_processes
        self.signals: list[int] = []
        self.was_signalled = False
        self.is_closed = False
        self.memory_note: str | None = None
        self.disk_note: str | None = None
        self.broken: ClaryError | None = None
        self.num_orphans = 0  # children of processes, which survive SIGTERM
        self._log = log
        self._ends_on_sigterm = ends_on_sigterm
        self._changed = threading.Condition()
        self._live = set(range(num_processes))
        self._ended: list[ProcessExit] = []
        self._doomed: set[int] = set()

    def print(self, text: str, *, rank: int = 0) -> None:
        self._log.on_output(rank, text.encode())

    def ranks_by_pid(self) -> dict[int, int]:
        return {}

    def end(self, code: int, *, rank: int = 0) -> None:
        """End one process; a negative code is the number of a signal."""
        with self._changed:
            self._live.discard(rank)
            self._ended.append(
                ProcessExit(
                    rank=rank,
                    local_rank=rank,
                    pid=1000 + rank,
                    exit_code=code if code >= 0 else None,
                    signal=-code if code < 0 else None,
                    ended_at=datetime.now(UTC),
                    is_consequence=rank in self._doomed,
                )
            )
            self._changed.notify_all()

    def hear_from_outside(self) -> None:
        """Mark every process as signalled from outside the agent; all stay alive."""
        with self._changed:
            self.was_signalled = True
            self._doomed |= self._live
            self._changed.notify_all()

    def wait_for_exits(self, timeout_s: float) -> Sequence[ProcessExit]:
        with self._changed:
            before = self.was_signalled
            self._changed.wait_for(lambda: self._ended or self.is_closed or self.was_signalled != before, timeout_s)
            ended, self._ended = self._ended, []
            return ended

    def send_signal(self, signum: int) -> None:
        self.signals.append(signum)
        self._doomed |= self._live
        if signum == signal.SIGKILL:
            self.num_orphans = 0
        if signum == signal.SIGKILL or self._ends_on_sigterm:
            for rank in sorted(self._live):
                self.end(-signum, rank=rank)

    def num_live(self) -> int:
        return len(self._live) + self.num_orphans

    def trouble(self) -> ClaryError | None:
        return self.broken

    def full_disk(self) -> str | None:
        return self.disk_note

    def out_of_memory(self) -> str | None:
        return self.memory_note

    def close(self) -> None:
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()


class FakeSteps:
    """Steps that return at once, fail, or wait until `let_go` or until they are cancelled.

    Args:
        num_processes, ends_on_sigterm: arguments of the program that the steps start.
        hold: names of steps that wait: tree, code, channel:NAME, environment, start, upload.
        errors: name of a step -> the exception that it raises.
    """

    def __init__(
        self,
        *,
        channels: Sequence[str] = (),
        code_channel: str | None = None,
        num_processes: int = 1,
        ends_on_sigterm: bool = True,
        hold: Sequence[str] = (),
        errors: dict[str, Exception] | None = None,
    ) -> None:
        self.channel_names = tuple(channels)
        self.code_channel = code_channel
        self.notes: tuple[str, ...] = ()
        self.summaries: tuple[str, ...] = ()
        self.done: list[str] = []
        self.uploads: list[tuple[UploadRole, list[StagedPart]]] = []
        self.uploaded = Uploaded(uris=("s3://bucket/model.tar.gz",))
        self.program: FakeProgram | None = None
        self.checkpoints: object | None = None
        self.ml_folder = Path("/nonexistent")  # a test that reads the folder assigns a real one
        self.failure_text: str | None = None
        self.records: tuple[Clue, ...] = ()
        self.announced: list[tuple[str, float, list[int]]] = []  # reason, grace, signals sent before
        self.is_closed = False
        self.has_planned = threading.Event()
        self.given_up = threading.Event()
        self.on_step: Callable[[str], None] = lambda name: None
        self._num_processes = num_processes
        self._ends_on_sigterm = ends_on_sigterm
        self._holds = {name: threading.Event() for name in hold}
        self._errors = errors or {}

    def let_go(self, name: str) -> None:
        self._holds[name].set()

    def build_tree(self) -> None:
        self._step("tree")

    def fetch_code(self) -> None:
        self._step("code")

    def fetch_channel(self, name: str) -> None:
        self._step(f"channel:{name}")

    def restore_checkpoints(self) -> None:
        self._step("checkpoints")

    def prepare_environment(self) -> None:
        self._step("environment")

    def use_interface(self, name: str) -> None:
        self.done.append(f"interface {name}")

    def make_program_ready(self, log: OutputLog) -> None:
        self.has_planned.set()

    def start_program(self, log: OutputLog) -> FakeProgram:
        self._step("start")
        self.program = FakeProgram(log, num_processes=self._num_processes, ends_on_sigterm=self._ends_on_sigterm)
        for rank in range(self._num_processes):
            log.open(rank, rank=rank)
        return self.program

    def announce_stop(self, *, reason: str, grace_s: float) -> None:
        assert self.program is not None
        self.announced.append((reason, grace_s, list(self.program.signals)))
        self._step("announce")

    def error_records(self) -> tuple[Clue, ...]:
        return self.records

    def failure_file(self) -> str | None:
        return self.failure_text

    def upload(self, role: UploadRole, staged: Sequence[StagedPart], *, omits_empty_model: bool = False) -> Uploaded:
        self.uploads.append((role, list(staged)))
        self._step("upload")
        return self.uploaded

    def abort(self) -> None:
        self.given_up.set()
        for hold in self._holds.values():
            hold.set()

    def close(self) -> None:
        self.is_closed = True

    def _step(self, name: str) -> None:
        self.on_step(name)
        if name in self._holds:
            self._holds[name].wait(30)
            if self.given_up.is_set():
                raise InterruptedError("given up")
        if name in self._errors:
            raise self._errors[name]
        self.done.append(name)
