"""A child process that no signal ends, in place of `subprocess.Popen`.

Where: tests of code that runs programs. A real one needs a broken driver or a dead network file system.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from typing import IO, Any, ClassVar, Self

FAKE_PID = 1 << 22  # larger than any process id


class FakeHangingProgram:
    """A program in an uninterruptible system call: SIGKILL has no effect until `may_end` is set.

    A wait without a limit raises an AssertionError.

    Args:
        args: program and arguments.
        options: as for Popen; pipes are /dev/null.
    """

    started: ClassVar[list[FakeHangingProgram]] = []

    def __init__(self, args: Sequence[str], **options: Any) -> None:
        self.args, self.pid = args, FAKE_PID
        self.returncode: int | None = None
        self.may_end = self.was_killed = False
        pipes = {name: _pipe(options.get(name)) for name in ("stdin", "stdout", "stderr")}
        self.stdin, self.stdout, self.stderr = pipes["stdin"], pipes["stdout"], pipes["stderr"]
        self.started.append(self)

    def communicate(self, given: bytes | None = None, timeout: float | None = None) -> tuple[bytes, bytes]:
        """Hang as `wait` does."""
        self.wait(timeout)
        return b"", b""

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, or raise TimeoutExpired at once."""
        if timeout is None:
            raise AssertionError(f"a wait without a limit for a program that hangs: {self.args}")
        if self.poll() is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return -9

    def poll(self) -> int | None:
        """Return the exit code, or None while the program hangs."""
        self.returncode = -9 if self.may_end else None
        return self.returncode

    def kill(self) -> None:
        """Note the signal."""
        self.was_killed = True

    terminate = kill

    def send_signal(self, number: int) -> None:
        """Note the signal; no signal ends the program.

        Args:
            number: of the signal.
        """
        self.was_killed = self.was_killed or number == signal.SIGKILL

    def __enter__(self) -> Self:
        """Return the program."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Wait without a limit, as Popen does."""
        self.wait()


def _pipe(option: object) -> IO[bytes] | None:
    return open("/dev/null", "r+b", buffering=0) if option == subprocess.PIPE else None
