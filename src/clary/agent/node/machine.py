"""Facts of this machine: processors, memory, GPUs, namespaces, and a digest that identifies the machine.

Where: the daemon sends these facts with every report; `probing` sends them before a daemon is installed.
"""

from __future__ import annotations

import contextlib
import ctypes
import getpass
import hashlib
import os
import socket
import sys
from pathlib import Path

from clary.base.limited_runs import RunTooLong, run_limited
from clary.contract.box_protocol import MAX_GPUS, BoxFacts

GPU_COMMAND = ("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader")
PROGRAM_TIMEOUT_S = 15.0
_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWUTS = 0x00020000, 0x10000000, 0x20000000, 0x04000000
_MS_REC_PRIVATE = 0x4000 | 0x40000
_MAX_NAME = 64
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def box_facts(*, restarts: str = "", gpus: tuple[str, ...] | None) -> BoxFacts:
    """Return processors, memory, GPUs and isolation of this machine.

    Args:
        restarts: phrase about the mechanism that starts the daemon after a reboot.
        gpus: UUIDs of the GPUs; None if the driver has not answered.
    """
    return BoxFacts(
        hostname=_printable(socket.gethostname()),
        user=_printable(user_name()),
        num_cpus=len(os.sched_getaffinity(0)),
        memory_bytes=_memory_bytes(),
        gpus=gpus,
        isolation=isolation_words(),
        python_version=".".join(map(str, sys.version_info[:3])),
        restarts=restarts,
    )


def boot_id() -> str:
    """Return the id of this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def user_name() -> str:
    """Return the user's name, or the user id if there is no name."""
    with contextlib.suppress(KeyError, OSError):
        return getpass.getuser()
    return str(os.geteuid())


def machine_digest() -> str:
    """Return a digest that identifies this machine and user, without revealing the machine's id."""
    known = ""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        with contextlib.suppress(OSError):
            known = known or Path(path).read_text(encoding="ascii", errors="replace").strip()
    return hashlib.sha256(f"{known}\0{socket.gethostname()}\0{os.geteuid()}".encode()).hexdigest()


def gpu_uuids() -> tuple[str, ...] | None:
    """Return the UUIDs of the GPUs from the driver, which takes seconds; empty without a driver, None if it fails."""
    try:
        done = run_limited(GPU_COMMAND, limit_s=PROGRAM_TIMEOUT_S)
    except FileNotFoundError:
        return ()
    except (OSError, RunTooLong):
        return None
    return read_uuids(done.output) if done.code == 0 else None


def read_uuids(listing: str) -> tuple[str, ...]:
    """Return the UUIDs in the output of GPU_COMMAND. Pure."""
    return tuple(_printable(line.strip()) for line in listing.splitlines() if line.strip())[:MAX_GPUS]


def isolation_words() -> str:
    """Return a phrase about the isolation that this machine allows for hosts; a child process tests it."""
    is_root = os.geteuid() == 0
    why = _why_no_namespaces(0 if is_root else _CLONE_NEWUSER)
    if why:
        return f"plain processes: {why}"
    return "namespaces" if is_root else "namespaces without root"


def _why_no_namespaces(user: int) -> str:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        why = "this kernel allows no namespaces"
        try:
            os.close(reading)
            libc = ctypes.CDLL(None, use_errno=True)
            wanted = user | _CLONE_NEWNS | _CLONE_NEWPID | _CLONE_NEWUTS
            refused = libc.unshare(wanted) or libc.mount(b"none", b"/", None, _MS_REC_PRIVATE, None)
            why = f"no namespaces: {os.strerror(ctypes.get_errno())}" if refused else ""
        finally:
            os.write(writing, why.encode()[:200])
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        why = answer.read().decode(errors="replace")
    os.waitpid(child, 0)
    return why


def _memory_bytes() -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        sizes = [int(file.readline().split()[1]) * 1024]
    for path in _LIMITS:
        with contextlib.suppress(OSError, ValueError):
            sizes.append(int(Path(path).read_text(encoding="ascii")))
    return min(size for size in sizes if size > 0)


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:_MAX_NAME]
