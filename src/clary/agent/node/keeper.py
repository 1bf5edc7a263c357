"""Keeper of one lease: it starts the boot program, outlives the daemon, and ends all processes left by the boot.

Where: the daemon starts it as `python node.pyz keep FOLDER`, in a session of its own. It adopts every orphan of the
lease (PR_SET_CHILD_SUBREAPER), so no process escapes; the boot dies with the keeper (PR_SET_PDEATHSIG), so no host
outlives the keeper. The keeper only waits: the daemon makes all decisions.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path

from clary.agent.node.lease_files import KeptProcess, LeaseFiles
from clary.agent.node.lease_processes import END_LIMIT_S, adopt_orphans, below, kill
from clary.base.processes import ProcessId
from clary.contract.box_protocol import MARK

START_FILE = "start.json"  # command of the boot; written by the daemon, without secrets
EXIT_KEPT = 3  # another keeper runs, or has run, this lease
_PR_SET_PDEATHSIG = 1
_LOOK_S = 0.02
_TAIL_BYTES, _MAX_LINE = 4096, 300
_PASSED_OVER = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def keep_lease(folder: Path) -> int:
    """Run the lease of a folder from start to end, once per lease; return an exit code."""
    files = LeaseFiles(folder)
    lock = os.open(files.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return EXIT_KEPT
    try:
        if files.read_keeper() is not None or files.read_record() is None:
            return EXIT_KEPT
    except OSError:  # the machine cannot read the record at the moment: the daemon starts a keeper again
        return EXIT_KEPT
    for number in _PASSED_OVER:
        signal.signal(number, _pass_over)  # a handler, because programs would inherit SIG_IGN
    adopt_orphans()
    command = json.loads((folder / START_FILE).read_text(encoding="utf-8"))["command"]
    files.write_keeper(_kept(os.getpid()))
    boot, go = _prepare(command)
    files.write_boot(_kept(boot))
    os.write(go, b"1")
    os.close(go)
    why = _wait(boot, files.output)
    left = _end_rest()
    files.write_end(f"{why}; {left} processes of it could not be killed" if left else why)
    return 0


def _pass_over(number: int, frame: object) -> None:
    """Do nothing: signals to the keeper's session are only for the agent."""


def _kept(pid: int) -> KeptProcess:
    found = ProcessId.of(pid)
    if found is None:
        raise ProcessLookupError(f"process {pid} has ended before it was named")
    return KeptProcess(pid=found.pid, started=found.started)


def _prepare(command: list[str]) -> tuple[int, int]:
    """Fork the boot, which waits for one byte before it starts, so that its process is recorded first."""
    waiting, go = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child:
        os.close(waiting)
        return child, go
    try:
        os.close(go)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent or not os.read(waiting, 1):
            os._exit(1)
        os.close(waiting)
        for number in _PASSED_OVER:
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        os.execv(command[0], command)  # noqa: S606 - our own boot
    except OSError as error:
        print(f"keeper: {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
    finally:
        os._exit(127)


def _wait(boot: int, output: Path) -> str:
    """Wait for the end of the boot and reap orphans meanwhile; return a phrase about the end.

    Args:
        boot: process id of the boot.
        output: file of its output, whose last line is the reason of a failure.
    """
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid != boot:
            continue
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            return f"its agent was killed by signal {-code}"
        words = _last_line(output) if code else ""
        return f"its agent ended with exit code {code}{': ' if words else ''}{words}"


def _last_line(output: Path) -> str:
    """Return a file's last line with text, shortened; empty without such a line, or if the file is unreadable."""
    try:
        # A program of this user may have put a pipe or a link in its place.
        with open(os.open(output, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip()[:_MAX_LINE] for line in reversed(lines) if line.strip()), "")


def _end_rest() -> int:
    """Kill and reap all descendants; return the number that cannot be killed."""
    me, deadline_s = os.getpid(), time.monotonic() + END_LIMIT_S
    while True:
        found = below(me)
        kill(found)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return 0
        if time.monotonic() > deadline_s:
            return len(found)
        time.sleep(_LOOK_S)


def environment_of(lease: str) -> dict[str, str]:
    """Return the environment for a keeper and its descendants: without SSH's variables, with the lease's mark."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SSH_", "XDG_SESSION"))}
    return {**kept, MARK: lease}
