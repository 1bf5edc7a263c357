"""A program on a host: its start, output, signals and end.

Where: the supervisor starts one program for each order to run; commands that run in a host (`host_command`) and the
rules over saved tensors (`rule_world`) are programs too. A program has a first process (`init`), which reports over a
control socket, and one reader thread in the agent, which reads those reports and the program's output. All methods may
be called from any thread.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import select
import signal
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from clary.agent.host.first_process import KILL_LIMIT_S, FirstProcess
from clary.agent.host.keeper import MAX_MESSAGE_BYTES
from clary.agent.host.output_pipes import LONGEST_REST_S, rest_s_of
from clary.agent.host.program_record import MAX_NOTE_CHARS, REPORT_KINDS, ProgramRecord
from clary.agent.host.sandbox import Bind, ProcessSpec, ProgramResult, Sandbox
from clary.base.clock import Clock, SystemClock
from clary.base.disk_space import where_full
from clary.base.errors import AgentError, Fault
from clary.contract.agent_protocol import ProcessExit
from clary.contract.launch_plan import Isolation

if TYPE_CHECKING:
    from typing_extensions import Self

START_LIMIT_S = 60.0  # from the first process's start to every process's exec; a slow disk may use most of it
ANSWER_LIMIT_S = 5.0  # the first process answers in microseconds unless it cannot run at all
FREE_LIMIT_S = 10.0  # for a host's clean-up before another program; a program's files in /tmp take longest
DRAIN_LIMIT_S = 5.0  # for output still in the pipes after the program's end

_READ_BYTES = 256 * 1024
_MAX_DRAIN_BYTES = 16 * 1024 * 1024  # limit of bytes read at an exit, because descendants may keep filling the pipe
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
# `failed` may come from the outer process of a host with namespaces; it cannot make a program succeed.
_OF_ANY_PROCESS = ("forked", "failed")
MAX_KIND_CHARS = 40


class NothingHasRunError(AgentError):
    """A start that failed before any process of the program ran: the program can be started in another host."""


class Program:
    """A running program; created by `start`, or by `make_ready_in` and `begin`; ended by `close`."""

    def __init__(
        self,
        processes: Sequence[ProcessSpec],
        sandbox: Sandbox,
        *,
        on_output: Callable[[int, bytes], None],
        clock: Clock,
        first_process: FirstProcess | None = None,
        on_free: Callable[[FirstProcess, str], None] | None = None,
    ) -> None:
        self._processes = tuple(processes)
        self._sandbox = sandbox
        self._on_output = on_output
        self._record = ProgramRecord(processes, hostname=sandbox.hostname, clock=clock)
        self._closing = threading.Lock()
        self._is_closed = False
        self._order_numbers = itertools.count()
        self._oom_kills = 0
        self._peak_memory_bytes: int | None = None
        self._first_process = first_process or FirstProcess(sandbox)
        self._on_free = on_free
        self._waits = False  # whether the processes wait for `begin`
        self._init_pidfd: int | None = None
        self._reader: threading.Thread | None = None
        self._outputs: dict[int, int] = {}  # read end -> index
        self._rest_s = LONGEST_REST_S
        self._wake_read, self._wake_write = os.pipe()

    @classmethod
    def start(
        cls,
        processes: Sequence[ProcessSpec],
        sandbox: Sandbox,
        *,
        on_output: Callable[[int, bytes], None],
        clock: Clock | None = None,
    ) -> Program:
        """Make the host and start every process in it.

        A command that cannot be executed raises no error: its process ends with exit code 127 or 126 and prints the
        reason, as in a shell.

        Args:
            processes: at least one process.
            sandbox: the host; `host_folder` and `ml_folder` exist.
            on_output: called with index and bytes as they are read, from one thread, also before `start` returns.
                Standard output and standard error of a process arrive in the order of the writes. During the call no
                other output is read, so the call must be quick.
            clock: time of day for exits not reported by the keeper.

        Raises:
            AgentError: the host could not be made; it was removed.
            ValueError: there is no process.
        """
        if not processes:
            raise ValueError("a program needs at least one process")
        program = cls(processes, sandbox, on_output=on_output, clock=clock or SystemClock())
        try:
            program._launch(program._first_process.launch)
            program._await_start()
        except BaseException:
            program.close()
            raise
        return program

    @classmethod
    def make_ready_in(
        cls,
        first_process: FirstProcess,
        processes: Sequence[ProcessSpec],
        sandbox: Sandbox,
        *,
        forks: Sequence[bool],
        binds: Sequence[Bind],
        waits: bool,
        on_output: Callable[[int, bytes], None],
        clock: Clock | None = None,
        on_free: Callable[[FirstProcess, str], None] | None = None,
    ) -> Program:
        """Start every process in a standby host, up to its first own code; `begin` starts that code.

        Args:
            first_process: of that host; owned by the program from now on, even if this call raises.
            processes: at least one process.
            sandbox: the sandbox that the host was made with.
            forks: for each process, whether it can be forked from the standby interpreter.
            binds: the host's late binds.
            waits: whether the processes wait for `begin`; if not, they begin now, and `begin` waits for them.
            on_output: as for `start`.
            clock: as for `start`.
            on_free: for a host that can serve several programs in succession. `close` calls it with the first process,
                which the caller then owns, and "" or the reason why the host serves no other program; with a reason the
                first process has ended.
        """
        program = cls(
            processes,
            sandbox,
            on_output=on_output,
            clock=clock or SystemClock(),
            first_process=first_process,
            on_free=on_free,
        )
        try:
            program._launch(functools.partial(first_process.send_start, forks=forks, binds=binds, waits=waits))
        except BaseException:
            program.close()
            raise
        program._waits = waits
        return program

    def begin(self) -> None:
        """Let every process of a program from `make_ready_in` begin; return once each has. Call it once.

        Raises:
            NothingHasRunError: the host failed before any process began; it was removed.
            AgentError: the host failed later, or was not ready in time; it was removed.
        """
        try:
            if self._waits:
                self._waits = False
                self._first_process.send_begin()  # if that fails, no report of a start follows
            self._await_start()
        except AgentError as error:
            self.close()  # reads the last reports
            if self._record.has_begun:
                raise
            raise NothingHasRunError(error.message, fault=error.fault) from error
        except BaseException:
            self.close()
            raise

    @property
    def init_pid(self) -> int:
        """Pid of the host's process 1 on the machine."""
        return self._record.init_pid

    @property
    def not_isolated(self) -> tuple[str, ...]:
        """Sentences about everything that the program shares with the machine."""
        return self._record.not_isolated

    @property
    def was_signalled(self) -> bool:
        """Whether a process other than the agent has sent SIGTERM to every process of the host."""
        return self._record.was_signalled

    @property
    def is_memory_limited(self) -> bool:
        """Whether the kernel enforces the host's memory limit; if not, the agent must watch the memory."""
        return self._first_process.is_memory_limited

    @property
    def may_be_followed(self) -> bool:
        """Whether the program's host may serve another program."""
        return self._on_free is not None

    @property
    def num_forked(self) -> int:
        """Number of processes forked from the standby interpreter; 0 if the host was no standby."""
        return self._record.num_forked

    @property
    def why_not_forked(self) -> str:
        """The reason why processes that could have been forked were executed instead; empty if all were forked."""
        return self._record.why_not_forked

    def signal_all(self, signal_number: int) -> int:
        """Send a signal to every live process of the program, each exactly once; signal 0 only counts them.

        Returns: number of signalled processes, descendants included; 0 after the program's end.
        """
        number = next(self._order_numbers)
        if not self._first_process.send({"kind": "signal", "number": int(signal_number), "id": number}):
            return 0
        return self._record.wait_for_answer(number, ANSWER_LIMIT_S)

    def kill(self) -> None:
        """Kill every process of the program at once; return when they have ended.

        Raises:
            AgentError: a process does not end within `KILL_LIMIT_S` because it hangs in the kernel.
        """
        self._record.expect_end()
        if self._first_process.send({"kind": "kill"}) and self._record.wait_until_ended(KILL_LIMIT_S):
            return
        self._end_init()
        if not self._record.wait_until_ended(KILL_LIMIT_S):
            raise AgentError(
                f"program on {self._sandbox.hostname}: {self.running()} of {len(self._processes)} processes still live "
                f"{KILL_LIMIT_S:g} s after SIGKILL; they hang in the kernel, as a rule on a disk or network file "
                "system that does not answer"
            )

    def wait(self, timeout_s: float) -> ProgramResult | None:
        """Wait until every listed process has ended; return None on timeout.

        All output of the listed processes has then been passed to `on_output`. Descendants may still run; `close` ends
        them.
        """
        if not self._record.wait_until_ended(timeout_s):
            return None
        self._count()
        return ProgramResult(
            exits=self._record.exits_in_order(),
            oom_kills=self._oom_kills,
            peak_memory_bytes=self._peak_memory_bytes,
            lost_why=self._record.lost_why,
            notes=self._record.notes(),
        )

    def exits(self) -> tuple[ProcessExit, ...]:
        """Return the exits so far, in order of time."""
        return tuple(sorted(self._record.exits_in_order(), key=lambda end: end.ended_at))

    def first_failure(self) -> ProcessExit | None:
        """Return the earliest failed exit that the agent did not cause."""
        return next((end for end in self.exits() if end.exit_code != 0 and not end.is_consequence), None)

    def running(self) -> int:
        """Return the number of listed processes that have not ended."""
        return self._record.num_running()

    def ranks_by_pid(self) -> dict[int, int]:
        """Return pid on the machine -> rank, for running ranks."""
        return self._record.ranks_by_pid()

    def close(self) -> None:
        """End all processes and clean up; a second call does nothing.

        No process, mount, cgroup, folder or descriptor is left, except those of a host that can serve another program:
        `on_free` gets that host. All output has been passed to `on_output` when this returns.
        """
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
        why_not_free = self._ask_again()
        self._record.expect_end()
        if why_not_free:
            self._end_init()
        if self._reader is not None:
            self._reader.join(DRAIN_LIMIT_S)
            if self._reader.is_alive():
                # A process outside of the program has inherited a pipe and keeps it open.
                os.write(self._wake_write, b"x")
                self._reader.join()
        self._record.lose_the_rest()
        self._count()
        self._close_descriptors()
        if why_not_free and (refusal := self._first_process.clean_up()):
            self._record.add_note(refusal)
        if self._on_free is not None:
            self._on_free(self._first_process, why_not_free)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _launch(self, send: Callable[..., object]) -> None:
        """Send all processes, and the write ends of their output pipes, to the host by `send`; read its reports."""
        write_ends: list[int] = []
        try:
            for index in range(len(self._processes)):
                read_end, write_end = os.pipe()
                os.set_blocking(read_end, False)
                self._rest_s = min(self._rest_s, rest_s_of(read_end))
                self._outputs[read_end] = index
                write_ends.append(write_end)
            send(self._processes, output_fds=write_ends)
            self._reader = threading.Thread(
                target=self._read, name=f"clary-program-{self._sandbox.hostname}", daemon=True
            )
            self._reader.start()
        finally:
            for descriptor in write_ends:
                os.close(descriptor)

    def _await_start(self) -> None:
        """Wait until every process has started. Raises: AgentError if the host fails or takes too long."""
        is_decided = self._record.wait_until_started(START_LIMIT_S)
        if self._record.is_ready:
            return
        reason = self._record.failure or self._first_process.last_words() or "its first process ended without a message"
        if not is_decided:
            reason = f"it was not ready after {START_LIMIT_S:g} s"
        reason = where_full(reason, Path(self._sandbox.host_folder))
        raise AgentError(
            f"host {self._sandbox.hostname} ({self._sandbox.isolation}) could not be made: {reason}",
            fault=Fault.INFRASTRUCTURE,
        )

    def _ask_again(self) -> str:
        """Ask the host to clean up for another program; return "", or the reason why it serves no other program."""
        if self._on_free is None:
            return "it serves one program"
        if self._record.num_running():
            return "the program was ended before its last process"
        if not self._first_process.send({"kind": "again"}):
            return "its first process has ended"
        return self._record.wait_until_free(FREE_LIMIT_S)

    def _end_init(self) -> None:
        """End the first process and, with it, the program."""
        self._first_process.end(pidfd=self._init_pidfd)
        if self._sandbox.isolation is Isolation.PROCESSES:
            for pid in self._record.running_pids():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)

    def _count(self) -> None:
        self._oom_kills = max(self._oom_kills, self._first_process.oom_kills())
        self._peak_memory_bytes = self._first_process.peak_memory_bytes() or self._peak_memory_bytes

    def _close_descriptors(self) -> None:
        for descriptor in (*self._outputs, self._wake_read, self._wake_write):
            os.close(descriptor)
        self._outputs.clear()
        if self._init_pidfd is not None:
            os.close(self._init_pidfd)
            self._init_pidfd = None

    # The methods below run in the reader thread.

    def _read(self) -> None:
        poll = select.poll()
        control = self._first_process.control.fileno()
        open_outputs = dict(self._outputs)
        rest = select.poll()
        for descriptor in (control, self._wake_read):
            rest.register(descriptor, select.POLLIN)
        for descriptor in (control, self._wake_read, *open_outputs):
            poll.register(descriptor, select.POLLIN)
        is_reporting = True
        while is_reporting or open_outputs:
            num_read = 0
            for descriptor, _ in poll.poll():
                if descriptor == self._wake_read:
                    return
                if descriptor == control:
                    if not self._take_report():
                        poll.unregister(control)
                        rest.unregister(control)
                        is_reporting = False
                elif (size_bytes := self._pass_output(descriptor)) == 0:
                    poll.unregister(descriptor)
                    del open_outputs[descriptor]
                else:
                    num_read = max(num_read, size_bytes or 0)
            if 0 < num_read < _READ_BYTES // 8:
                # Pause between reads: programs write line by line, and a wake-up costs more than a read of many lines.
                rest.poll(self._rest_s * 1000)

    def _pass_output(self, descriptor: int) -> int | None:
        """Read once and pass the bytes to `on_output`; return their number, 0 at end of file, None without output."""
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return None
        if data:
            try:
                self._on_output(self._outputs[descriptor], data)
            except Exception as error:  # noqa: BLE001 - boundary: a listener's defect must not block the program's pipe
                self._record.add_repeated_note(
                    f"output {type(error).__name__}",
                    f"Output was lost, because its listener failed: {type(error).__name__}: {error}.",
                )
        return len(data)

    def _take_report(self) -> bool:
        """Receive and apply one report; return False after the last report.

        Programs share an interpreter's sockets in some hosts, so reports may be forged: only the host's first process
        is believed, except for `forked`, which each process sends itself. A report that cannot be read ends the host.
        """
        try:
            data, ancillary, _, _ = self._first_process.control.recvmsg(
                MAX_MESSAGE_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size)
            )
        except BlockingIOError:
            return True
        except ConnectionError:
            data, ancillary = b"", []
        if not data:
            self._end_reports()
            return False
        sender = next((_CREDENTIALS.unpack(content)[0] for _, _, content in ancillary), 0)
        try:
            return self._apply(json.loads(data), sender=sender)
        except (ValueError, KeyError, TypeError, OverflowError, OSError, RecursionError) as error:
            self._record.fail(
                f"process {sender} sent a report about the program that cannot be used "
                f"({type(error).__name__}: {str(error)[:MAX_NOTE_CHARS]})"
            )
            # To the first process this looks like the agent's end: it kills all processes and exits.
            with contextlib.suppress(OSError):
                self._first_process.control.shutdown(socket.SHUT_RDWR)
            self._end_reports()
            return False

    def _apply(self, report: Mapping[str, Any], *, sender: int) -> bool:
        """Apply one report; return False if it is the last. Raises: ValueError, KeyError, TypeError."""
        kind = report["kind"]
        if kind not in _OF_ANY_PROCESS and not self._is_of_first_process(kind, sender):
            is_known = isinstance(kind, str) and kind in REPORT_KINDS
            self._record.add_repeated_note(
                f"ignored {kind}" if is_known else "ignored",
                f"A report {str(kind)[:MAX_KIND_CHARS]!r} of process {sender} was ignored, because this process is not "
                "the host's first process.",
            )
            return True
        self._record.check(report)
        if kind == "exited":
            # The process's output is in the pipe by now, and must be passed on before a caller sees the exit.
            self._drain(report["index"])
        if kind == "init":
            with contextlib.suppress(ProcessLookupError):
                self._init_pidfd = os.pidfd_open(sender)
        self._record.apply(report, sender=sender)
        return bool(kind != "again")

    def _is_of_first_process(self, kind: str, sender: int) -> bool:
        if kind == "init":
            return not self._record.init_pid and self._first_process.has_started(sender)
        return sender == self._record.init_pid

    def _end_reports(self) -> None:
        for index in range(len(self._processes)):
            self._drain(index)
        self._record.lose_the_rest()

    def _drain(self, index: int) -> None:
        descriptor = next(fd for fd, owner in self._outputs.items() if owner == index)
        taken = 0
        while taken < _MAX_DRAIN_BYTES and (count := self._pass_output(descriptor)):
            taken += count
