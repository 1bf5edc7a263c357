"""The room in which py-spy runs: no more rights than over one host's programs, and no files but theirs and /proc.

Where: `stacks` runs it as a process of its own, which becomes py-spy. py-spy opens the files that a process says it has
mapped, at `/proc/PID/root/NAME` and at `NAME`. The program chooses these names, and may replace a folder in one by an
absolute link, which the kernel resolves in py-spy's own root. So py-spy

- has the root of the host's programs, in a copy of their mounts with the machine's /proc, so that links lead to what
  the programs see themselves;
- enters the user namespace of the programs, if they have one, and becomes its root: it may read and pause these
  programs and nothing outside, and it opens files with rights that the programs have too;
- keeps CAP_SYS_PTRACE alone.

The program of py-spy is opened before and executed by its descriptor. It must be static, as pip's is: a library would
be one of the job's. The process that becomes py-spy stays outside of the host's list of processes, so programs cannot
signal it.
Source: setns(2), user_namespaces(7), ptrace(2) "Ptrace access mode checking", proc(5) "/proc/PID/root".
"""

from __future__ import annotations

import errno
import os
import struct
import sys

import clary
from clary.agent.host import kernel
from clary.base.processes import read_entry

_CAP_SYS_PTRACE = 19
_MAGIC = b"\x7fELF\x02\x01"  # of 64-bit little-endian programs
_HEADER = struct.Struct("<32sQ14xHH")  # start of an ELF header: place, size and number of the program headers
_KIND = struct.Struct("<I")  # first field of a program header
_INTERPRETER = 3  # PT_INTERP
_FAILED_EXIT_CODE = 70  # sysexits.h EX_SOFTWARE
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from clary.agent.autopsy.spy_room import main; main()"


def is_apart(pid: int) -> bool:
    """Whether a process sees other files than this process, as in a host with namespaces. Raises: OSError."""
    return not os.path.samestat(os.stat(f"/proc/{pid}/ns/mnt"), os.stat("/proc/self/ns/mnt"))


def room_command(command: list[str], *, pid: int, started_at: int) -> list[str]:
    """Return the command that runs py-spy in its room.

    Args:
        command: path and arguments of py-spy.
        pid: of the process that it reads.
        started_at: start time of this process, as in `ProcessEntry`.
    """
    sources = os.path.dirname(os.path.dirname(os.path.abspath(clary.__file__)))
    return [sys.executable, "-I", "-S", "-B", "-c", _START, sources, str(pid), str(started_at), *command]


def main() -> None:
    """Enter the room and become py-spy; on failure say why on standard error and end.

    Raises: SystemExit after a failure.
    """
    pid, started_at, *command = sys.argv[1:]
    try:
        program = os.open(command[0], os.O_RDONLY | os.O_CLOEXEC)
        _require_static(program)
        users, mounts = (os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in ("user", "mnt"))
        entry = read_entry(int(pid))
        if entry is None or entry.started_at != int(started_at):
            raise ProcessLookupError(errno.ESRCH, f"process {pid} has ended")
        if os.geteuid() == 0:  # root's rights over mounts hold in every user namespace, but end with entering one
            _enter_files(mounts)
            _enter_users(users)
        else:
            _enter_users(users)
            kernel.unshare(kernel.CLONE_NEWNS)  # to have a /proc of its own to copy
            _enter_files(mounts)
        kernel.limit_capabilities(frozenset({_CAP_SYS_PTRACE}))
        os.execve(program, command, {"PATH": os.defpath})  # noqa: S606 - no shell wanted
    except OSError as error:
        said = error.strerror or str(error)
        print(f"py-spy could not be shut off from other files, so it was not run: {said}", file=sys.stderr)
        sys.exit(_FAILED_EXIT_CODE)


def _require_static(program: int) -> None:
    """Check that the kernel executes a file without another one. Raises: OSError."""
    head = os.pread(program, _HEADER.size, 0)
    kinds = []
    if len(head) == _HEADER.size and head.startswith(_MAGIC):
        _, offset, size, number = _HEADER.unpack(head)
        parts = (os.pread(program, _KIND.size, offset + place * size) for place in range(number))
        kinds = [_KIND.unpack(part)[0] for part in parts if len(part) == _KIND.size]
    if not kinds or _INTERPRETER in kinds:
        raise OSError(
            errno.ENOEXEC, "it needs other files to run, which would be the job's; pip's needs none: pip install py-spy"
        )


def _enter_files(mounts: int) -> None:
    """Enter a copy of the mounts of a host, with the /proc that this process has now."""
    own = kernel.clone_mounts("/proc")
    kernel.join_namespace(mounts, kind=kernel.CLONE_NEWNS)  # also makes the host's root this process's root
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.place_mounts(own, "/proc")
    os.close(own)
    os.chdir("/")


def _enter_users(users: int) -> None:
    """Become root of a user namespace, unless it is this process's own."""
    if os.path.samestat(os.fstat(users), os.stat("/proc/self/ns/user")):
        return
    kernel.join_namespace(users, kind=kernel.CLONE_NEWUSER)
    with open("/proc/self/setgroups") as file:
        if file.read().strip() == "allow":  # a user's own namespace forbids the call
            os.setgroups(())
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
