"""Runs short programs within limits of time and output; the time limit holds even if a program cannot be killed.

Where: every part that asks another program: nvidia-smi, py-spy, Slurm's programs, interpreters. `subprocess.run` kills
a late program and then waits for its end without a limit. A program that hangs in the kernel, in a GPU's driver or a
dead network file system, ends only when the kernel lets it go. Such a program is abandoned here: a warning names it,
its pipes are closed, and later calls collect it once it has ended. `agent.boot`, which imports nothing of Clary, has a
shorter form of `run_limited`.

The output of some programs grows with what a stranger has made: py-spy prints the names of a job's functions. So there
is a limit on it for every program, and one on a program's memory where that grows as well.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import selectors
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

END_S = 2.0  # for a killed program to end; one that does not hang in the kernel needs milliseconds
MAX_OUTPUT_BYTES = 16 * 1024 * 1024  # of a program's two streams together
_READ_BYTES = 65536
_WRITE_BYTES = 512  # a pipe that can be written takes as many without blocking (PIPE_BUF of POSIX)

logger = logging.getLogger(__name__)
_lock = threading.Lock()
_abandoned: list[subprocess.Popen[bytes]] = []  # guarded by `_lock`; a child must be waited for by its own `Popen`


@dataclass(frozen=True, kw_only=True)
class Ended:
    """Exit code and output of a program that has ended; bytes that are not UTF-8 are replaced."""

    code: int
    output: str
    errors: str


class RunTooLong(subprocess.TimeoutExpired):
    """A program did not end within its limit. It was killed, or hangs in the kernel and was abandoned."""

    def __init__(self, command: Sequence[str], limit_s: float, *, hanging_pid: int | None) -> None:
        super().__init__(command, limit_s)
        self.hanging_pid = hanging_pid  # process that SIGKILL does not end; None if the program was killed

    def __str__(self) -> str:
        """Name the program, the limit, and the process that is left."""
        words = f"{os.path.basename(str(self.cmd[0]))} did not end within {self.timeout:g} s"
        return words if self.hanging_pid is None else f"{words}, and process {self.hanging_pid} hangs in the kernel"


class OutputTooLong(OSError):
    """A program printed more than its limit, and was ended."""

    def __init__(self, program: str, most_bytes: int) -> None:
        super().__init__(
            errno.EFBIG, f"{os.path.basename(program)} printed more than {most_bytes} bytes, and was ended"
        )

    def __str__(self) -> str:
        """Name the program and the limit."""
        return str(self.strerror)


def run_limited(
    command: Sequence[str],
    *,
    limit_s: float,
    given: bytes | None = None,
    variables: Mapping[str, str] | None = None,
    folder: str | None = None,
    most_bytes: int = MAX_OUTPUT_BYTES,
    memory_bytes: int | None = None,
    kept: Sequence[int] = (),
) -> Ended:
    """Run a program to its end; any exit code is accepted. It takes at most `limit_s` + END_S.

    Args:
        command: program and arguments.
        limit_s: seconds after which the program is killed.
        given: its standard input; None for an empty one.
        variables: its environment; None for that of this process.
        folder: its working folder; None for that of this process.
        most_bytes: of its output and error output together; beyond it the program is killed.
        memory_bytes: its limit on private memory (RLIMIT_DATA), in which its own allocations fail; None for that of
            this process. Mapped files do not count.
        kept: descriptors that the program gets as well, such as that of a lock, which it then holds with this process.
    Raises: RunTooLong, a subprocess.TimeoutExpired, after which no other thread or child waits for the program;
        OutputTooLong, an OSError; OSError if it cannot be started or its memory cannot be limited.
    """
    collect_abandoned()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL if given is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=None if variables is None else dict(variables),
        cwd=folder,
        pass_fds=kept,
    )
    try:
        if memory_bytes is not None:
            _limit_memory(process.pid, memory_bytes)
        output, errors = _output(process, given, end_s=time.monotonic() + limit_s, most_bytes=most_bytes)
    except subprocess.TimeoutExpired:
        has_ended = end_process(process)
        raise RunTooLong(command, limit_s, hanging_pid=None if has_ended else process.pid) from None
    except BaseException:
        end_process(process)
        raise
    return Ended(
        code=process.returncode,
        output=output.decode("utf-8", "replace"),
        errors=errors.decode("utf-8", "replace"),
    )


def _limit_memory(pid: int, most_bytes: int) -> None:
    """Lower a child's limit on private memory, just after its start.

    Not between fork and exec: Python code there may stop forever in a process with threads.
    """
    _, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
    known = most_bytes if hard == resource.RLIM_INFINITY else min(most_bytes, hard)
    resource.prlimit(pid, resource.RLIMIT_DATA, (known, known))


def _output(
    process: subprocess.Popen[bytes], given: bytes | None, *, end_s: float, most_bytes: int
) -> tuple[bytes, bytes]:
    """Give a child its input, read its output to the end, and wait for its end.

    Raises: subprocess.TimeoutExpired; OutputTooLong.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    streams: dict[object, bytearray] = {process.stdout: bytearray(), process.stderr: bytearray()}
    left = memoryview(given or b"")
    with selectors.PollSelector() as selector:
        for pipe in (process.stdout, process.stderr):
            selector.register(pipe, selectors.EVENT_READ)
        if process.stdin is not None:
            selector.register(process.stdin, selectors.EVENT_WRITE)
        while selector.get_map():
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise subprocess.TimeoutExpired(process.args, left_s)
            for key, _ in selector.select(left_s):
                if key.fileobj is process.stdin:
                    left = _give(key.fd, left)
                    if not left:
                        selector.unregister(process.stdin)
                        process.stdin.close()
                elif data := os.read(key.fd, _READ_BYTES):
                    streams[key.fileobj] += data
                    if sum(map(len, streams.values())) > most_bytes:
                        raise OutputTooLong(_name(process), most_bytes)
                else:
                    selector.unregister(key.fileobj)
    process.wait(max(0.0, end_s - time.monotonic()))
    for pipe in (process.stdout, process.stderr):
        pipe.close()
    return bytes(streams[process.stdout]), bytes(streams[process.stderr])


def _give(descriptor: int, left: memoryview) -> memoryview:
    """Write the next part of a program's input; return the rest, an empty one if the program reads no more."""
    try:
        return left[os.write(descriptor, left[:_WRITE_BYTES]) :] if left else left
    except BrokenPipeError:
        return left[:0]


def end_process(process: subprocess.Popen[bytes], *, limit_s: float = END_S) -> bool:
    """Kill a child process, wait a short time for its end and close its pipes; return whether it has ended.

    A child that has not ended is abandoned.

    Args:
        process: the child; one that has ended already is only waited for.
        limit_s: longest wait.
    """
    process.kill()  # does nothing if it was waited for
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        logger.warning(
            "%s (process %d) does not end after SIGKILL: it hangs in the kernel", _name(process), process.pid
        )
        with _lock:
            _abandoned.append(process)
        has_ended = False
    else:
        has_ended = True
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):  # what was not written yet is lost with the program
                pipe.close()
    return has_ended


def collect_abandoned() -> tuple[int, ...]:
    """Collect abandoned children that have ended meanwhile, without blocking; return the ids of the others."""
    with _lock:
        _abandoned[:] = [process for process in _abandoned if process.poll() is None]
        return tuple(process.pid for process in _abandoned)


def _name(process: subprocess.Popen[bytes]) -> str:
    first = process.args if isinstance(process.args, str | bytes | os.PathLike) else next(iter(process.args), "")
    return os.path.basename(os.fsdecode(first))
