"""Start one process of a program.

Where: the keeper of a host forks here, and `zygote_process` the standby interpreter. Between fork and exec the child
resets inherited state of the keeper: session, signals, descriptors. As in a shell, an error is written to the child's
own output, and the exit code is 127 for a missing command, 126 for a command that cannot be executed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from clary.agent.host import kernel
from clary.agent.host.confinement import Confinement

NOT_FOUND_EXIT_CODE = 127
NOT_EXECUTABLE_EXIT_CODE = 126

_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_OPEN_FILES = 65536  # soft limit in containers; a shell's 1024 is too low for data loaders
_OOM_PREFERENCE = 300  # of 1000: when memory runs out, the kernel kills the program before its keepers
_UMASK = 0o022


def spawn(
    process: Mapping[str, Any],
    *,
    announce: Callable[[], object],
    parent_watched: bool,
    confinement: Confinement,
    inherited_fds: Sequence[int] = (),
) -> tuple[int, str]:
    """Fork and execute; return the pid and a sentence if the command could not be executed, else "".

    Args:
        process: argv, environment, working_folder and output_fd.
        announce: called in the child after it has its own session and before other state is reset.
        parent_watched: whether to set a parent-death signal; in a PID namespace the process dies with its parent
            anyway.
        confinement: entered when all inherited state is reset, before the change of the working folder and exec.
        inherited_fds: descriptors that it inherits in addition to standard input and outputs.
    """
    read_end, write_end = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read_end)
            if parent_watched:
                kernel.die_with_parent(signal.SIGKILL)
                if os.getppid() != parent:
                    os._exit(NOT_EXECUTABLE_EXIT_CODE)
            _become(
                process, announce=announce, failure_fd=write_end, inherited_fds=inherited_fds, confinement=confinement
            )
        except OSError as error:
            _fail(write_end, str(error), error.errno)
        finally:
            os._exit(NOT_EXECUTABLE_EXIT_CODE)
    os.close(write_end)
    with open(read_end, "rb") as pipe:  # exec closes the pipe, so this waits exactly until exec
        return pid, pipe.read().decode(errors="replace")


def announce_to(control: socket.socket, index: int) -> None:
    """Announce the caller's pid to the agent: the socket's credentials carry it as a pid of the machine.

    Args:
        control: socket to the agent.
        index: index of the process in its program.
    """
    control.send(json.dumps({"kind": "forked", "index": index}).encode())


def _become(
    process: Mapping[str, Any],
    *,
    announce: Callable[[], object],
    failure_fd: int,
    inherited_fds: Sequence[int],
    confinement: Confinement,
) -> NoReturn:
    output, environment, folder = process["output_fd"], process["environment"], process["working_folder"]
    os.setsid()
    announce()
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for descriptor in inherited_fds:
        os.set_inheritable(descriptor, True)
    os.umask(_UMASK)
    _set_limits()
    _reset_signals()
    confinement.enter()
    try:
        os.chdir(folder)
    except OSError as error:
        _fail(failure_fd, f"working folder {folder}: {os.strerror(error.errno or 0)}", error.errno)
    argv, command = process["argv"], process["argv"][0]
    try:
        os.execve(find_command(command, environment), argv, environment)  # noqa: S606 - a shell would split argv again
    except OSError as error:
        _fail(failure_fd, _explain(error, argv=argv, environment=environment), error.errno)
    except ValueError as error:  # a NUL byte, or an equals sign in a name
        _fail(failure_fd, f"{command}: {error}", None)


def find_command(command: str, environment: Mapping[str, str]) -> str:
    """Return the file that a shell would execute for `command`, or else a path that cannot be executed."""
    if "/" in command or not command:
        return command
    candidates = [f"{folder or '.'}/{command}" for folder in environment.get("PATH", _DEFAULT_PATH).split(":")]
    for candidate in candidates:
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    # An existing file that is not executable gives the better error.
    return next((candidate for candidate in candidates if os.path.isfile(candidate)), f"/nonexistent/{command}")


def _explain(error: OSError, *, argv: list[str], environment: Mapping[str, str]) -> str:
    command = argv[0]
    if error.errno == errno.ENOENT:
        if "/" not in command:
            return f"{command}: command not found in PATH={environment.get('PATH', _DEFAULT_PATH)}"
        if os.path.exists(command):
            return f"{command}: exists, but the interpreter in its first line does not"
        return f"{command}: no such file"
    if error.errno == errno.ENOEXEC:
        return f"{command}: not a program: it has neither a binary's header nor '#!' as its first two characters"
    if error.errno == errno.E2BIG:
        name, value = max(environment.items(), key=lambda item: len(item[1]), default=("", ""))
        return (
            f"{command}: arguments and environment are larger than the kernel takes; the largest variable is {name} "
            f"with {len(value)} characters, a single one may have 131071"
        )
    return f"{command}: {os.strerror(error.errno or 0)}"


def _fail(failure_fd: int, sentence: str, error_number: int | None) -> NoReturn:
    message = f"clary: cannot start the program: {sentence}\n".encode(errors="replace")
    os.write(2, message)
    os.write(failure_fd, sentence.encode(errors="replace"))
    missing = error_number in (errno.ENOENT, errno.ENOTDIR)
    os._exit(NOT_FOUND_EXIT_CODE if missing else NOT_EXECUTABLE_EXIT_CODE)


def _set_limits() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    with contextlib.suppress(OSError):  # optional
        with open("/proc/self/oom_score_adj") as file:
            present = int(file.read())
        if present < _OOM_PREFERENCE:
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write(str(_OOM_PREFERENCE))


def _reset_signals() -> None:
    for number in signal.valid_signals():
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
