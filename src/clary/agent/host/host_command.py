"""Run one untrusted command in a host of its own, before the job's program starts; wait for its end.

Where: `environments.installation` installs requirements with it; `supervisor.wiring` runs programs that may come from a
job, such as Open MPI's, and reads their output. The host ends before `run_in_host` returns, so no process of the
command remains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

from clary.agent.host.program import Program
from clary.agent.host.sandbox import ProcessSpec, Sandbox
from clary.base.errors import AgentError
from clary.contract.failure_reasons import OUT_OF_MEMORY

KEPT_BYTES = 256 * 1024  # last bytes of the output, since a build may print without end
_POLL_S = 0.05
_MIB = 1024 * 1024
_SIGNAL_CODE = 128  # added to the number of a signal that ended the command, as shells do


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """Result of a command."""

    exit_code: int  # 128 plus the signal's number if a signal ended it
    output: str  # the last `KEPT_BYTES` of standard output and standard error
    starved: str = ""  # a sentence, if the memory limit caused the kill of a process or of the whole host


class Watch(Protocol):
    """Watches a host until it is closed."""

    def close(self) -> bool:
        """End the watch; a second call does nothing."""


# Starts a watch on the memory of a host's program if the kernel does not enforce the limit; otherwise returns None. The
# watch calls the last argument once, from its own thread, with a description of the excess.
WatchMemory = Callable[[Program, Sandbox, Callable[[str], None]], Watch | None]


def run_in_host(
    process: ProcessSpec, sandbox: Sandbox, *, check: Callable[[], None], watch_memory: WatchMemory
) -> CommandResult:
    """Make a host, run one command in it, end the host.

    Args:
        process: the command.
        sandbox: the host; without namespaces the command runs as a plain process of the machine.
        check: called often; an error raised by it ends the command.
        watch_memory: enforces the host's memory limit if the kernel does not; an excess ends the command.
    Raises: AgentError: the host could not be made, or ended before the command did.
    """
    tail = _Tail()
    excesses: list[str] = []
    with Program.start((process,), sandbox, on_output=tail.add) as program, ExitStack() as stack:
        watch = watch_memory(program, sandbox, excesses.append)
        if watch is not None:
            stack.callback(watch.close)
        while (result := program.wait(_POLL_S)) is None and not excesses:
            check()
        if result is None:
            program.kill()
            result = program.wait(0.0)
            assert result is not None, "kill returns when the processes are gone"
    if result.lost_why and not result.oom_kills and not excesses:
        raise AgentError(f"{process.argv[0]} on {sandbox.hostname}: {result.lost_why}", retryable=True)
    (end,) = result.exits
    return CommandResult(
        exit_code=end.exit_code if end.exit_code is not None else _SIGNAL_CODE + (end.signal or 0),
        output=tail.text(),
        starved=_starved(excesses, result.oom_kills, sandbox.resources.memory_bytes),
    )


def _starved(excesses: Sequence[str], oom_kills: int, memory_bytes: int | None) -> str:
    if excesses:
        return f"{OUT_OF_MEMORY}: {excesses[0]}"
    if not oom_kills or memory_bytes is None:
        return ""
    return (
        f"{OUT_OF_MEMORY}: the host's memory limit of {memory_bytes // _MIB} MiB was reached and {oom_kills} of its "
        "processes were killed"
    )


class _Tail:
    """The last bytes of an output."""

    def __init__(self) -> None:
        self._data = bytearray()

    def add(self, _: int, data: bytes) -> None:
        self._data += data
        if len(self._data) > 2 * KEPT_BYTES:
            del self._data[:-KEPT_BYTES]

    def text(self) -> str:
        return bytes(self._data[-KEPT_BYTES:]).decode("utf-8", "replace")
