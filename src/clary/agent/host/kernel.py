"""System calls that Python 3.11 does not offer: mounts, namespaces, capabilities, process attributes.

Where: the first process of a host (`init` and its imports) calls it; other modules of the agent use single functions.
A function that fails raises OSError with a text that names the call and its objects. The module has no heavy imports,
because it runs before the user's program starts.
Source: mount(2), mount_setattr(2), pivot_root(2), unshare(2), setns(2), prctl(2), capabilities(7), signalfd(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import struct
from collections.abc import Iterator

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MS_SLAVE = 1 << 19
MS_SHARED = 1 << 20
MS_RELATIME = 1 << 21
MNT_DETACH = 2

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

_PR_SET_PDEATHSIG = 1
_PR_GET_SECCOMP = 21
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_READ = 23
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4

_CAPABILITY_VERSION_3 = 0x20080522
_HIGHEST_CAPABILITY = 63  # the bounding set has at most 64 bits; PR_CAPBSET_READ shows which capabilities exist

_SECCOMP_NUMBERS = {"x86_64": 317, "aarch64": 277}
_SECCOMP_SET_MODE_FILTER = 1
_SECCOMP_SPECULATION_ALLOWED = 4  # without this flag kernels before 5.16 slow down every program of the host
_KEYCTL_NUMBERS = {"x86_64": 250, "aarch64": 219}
_KEYCTL_JOIN_SESSION_KEYRING = 1
_IOPRIO_GET_NUMBERS = {"x86_64": 252, "aarch64": 31}
_IOPRIO_WHO_PROCESS = 1

_SYS_OPEN_TREE = 428  # this number and the next are the same on every architecture
_SYS_MOVE_MOUNT = 429
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_FROM_DESCRIPTOR = 4
_MOVE_MOUNT_THROUGH_LINKS = 0x10  # MOVE_MOUNT_T_SYMLINKS: the target may be a path of /proc/self/fd
_AT_EMPTY_PATH = 0x1000
_MOUNT_ATTR_IDMAP = 0x00100000
_SYS_MOUNT_SETATTR = 442  # the same number on every architecture; kernel >= 5.12
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY = 1

# The capabilities of root in a Docker container, without MKNOD: Docker can grant it because a devices cgroup prevents
# the use of device nodes, while here a node of the machine's disk would give access to the disk. Source: moby
# oci/caps/defaults.go; numbers from linux/capability.h.
KEPT_CAPABILITIES = frozenset(
    {
        0,  # CHOWN
        1,  # DAC_OVERRIDE
        3,  # FOWNER
        4,  # FSETID
        5,  # KILL
        6,  # SETGID
        7,  # SETUID
        8,  # SETPCAP
        10,  # NET_BIND_SERVICE
        13,  # NET_RAW
        18,  # SYS_CHROOT
        29,  # AUDIT_WRITE
        31,  # SETFCAP
    }
)


_IPC_RMID = 0  # linux/ipc.h
_SIGNAL_SET_BYTES = 128  # glibc's sigset_t, the largest of any C library
# Codes of signals whose sender the kernel itself writes: kill, tgkill, the kernel. With any other code the sender may
# have invented the pid (rt_sigqueueinfo), or there is none (timers, F_SETSIG). Source: kernel/signal.c,
# `do_rt_sigqueueinfo`, which refuses these codes to other processes, root included; asm-generic/siginfo.h.
_CODES_WITH_TRUE_SENDER = frozenset({0, -6, 0x80})  # SI_USER, SI_TKILL, SI_KERNEL
UNKNOWN_SENDER = -1
_SIGNAL_INFO = struct.Struct("=IiiI112x")  # start of struct signalfd_siginfo: signal, errno, code, pid of the sender


class _CapabilityHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _CapabilityData(ctypes.Structure):
    _fields_ = [("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32)]


class _FilterProgram(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


class _MountAttributes(ctypes.Structure):
    _fields_ = [
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("user_namespace_fd", ctypes.c_uint64),
    ]


def mount(source: str, target: str, *, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount `source` at `target`. Raises: OSError.

    Args:
        source: a folder or file for bind mounts, else a name that the file system may ignore.
        target: an existing mount point; for bind mounts a folder or a file, like the source.
        kind: the file system; empty for bind mounts and remounts.
        flags: `MS_*`.
        options: of the file system, separated by commas.
    """
    result = _libc().mount(
        os.fsencode(source), os.fsencode(target), kind.encode() or None, ctypes.c_ulong(flags), options.encode() or None
    )
    _check(result, f"mount {kind or 'bind'} {source} at {target}")


def unmount(target: str, *, flags: int = 0) -> None:
    """Unmount the mount at `target`."""
    _check(_libc().umount2(os.fsencode(target), flags), f"unmount {target}")


def make_read_only(target: str) -> None:
    """Make the mount at `target`, and all mounts below it, read-only.

    Before kernel 5.12 only the mount at `target` changes. Its other flags are read and set again, because a user
    namespace may not clear inherited flags.
    """
    attributes = _MountAttributes(_MOUNT_ATTR_RDONLY, 0, 0, 0)
    result = _libc().syscall(
        ctypes.c_long(_SYS_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        os.fsencode(target),
        ctypes.c_uint(_AT_RECURSIVE),
        ctypes.byref(attributes),
        ctypes.c_size_t(ctypes.sizeof(attributes)),
    )
    if result == 0:
        return
    present = os.statvfs(target).f_flag
    kept = present & (MS_NOSUID | MS_NODEV | MS_NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME)
    if present & os.ST_RELATIME:
        kept |= MS_RELATIME
    mount("none", target, flags=MS_REMOUNT | MS_BIND | MS_RDONLY | kept)


def bind_mapped(source: str, target: str, *, users: int, read_only: bool = False) -> None:
    """Bind-mount `source` and all mounts below it at `target`, with owners mapped by a user namespace.

    Args:
        source: file or folder, of a file system that maps owners (ext4, xfs, btrfs and tmpfs do; kernel >= 5.12).
        target: mount point.
        users: descriptor of the user namespace; at `target`, files of user 0 belong to the namespace's root.
        read_only: whether the mount is read-only.
    """
    what = f"bind {source} at {target} with other owners"
    tree = clone_mounts(source)
    try:
        attributes = _MountAttributes(_MOUNT_ATTR_IDMAP | (_MOUNT_ATTR_RDONLY if read_only else 0), 0, 0, users)
        result = _libc().syscall(
            ctypes.c_long(_SYS_MOUNT_SETATTR),
            ctypes.c_int(tree),
            b"",
            ctypes.c_uint(_AT_EMPTY_PATH | _AT_RECURSIVE),
            ctypes.byref(attributes),
            ctypes.c_size_t(ctypes.sizeof(attributes)),
        )
        _check(result, what)
        place_mounts(tree, target)
    finally:
        os.close(tree)


def clone_mounts(source: str) -> int:
    """Return the descriptor of a copy of `source` and all mounts below it, which is mounted nowhere yet."""
    tree = _libc().syscall(
        ctypes.c_long(_SYS_OPEN_TREE),
        ctypes.c_int(_AT_FDCWD),
        os.fsencode(source),
        ctypes.c_uint(_OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_RECURSIVE),
    )
    _check(min(tree, 0), f"copy the mounts at {source}")
    return int(tree)


def place_mounts(tree: int, target: str) -> None:
    """Mount a copy from `clone_mounts` at `target`, also in another mount namespace than its source."""
    result = _libc().syscall(
        ctypes.c_long(_SYS_MOVE_MOUNT),
        ctypes.c_int(tree),
        b"",
        ctypes.c_int(_AT_FDCWD),
        os.fsencode(target),
        ctypes.c_uint(_MOVE_MOUNT_FROM_DESCRIPTOR | _MOVE_MOUNT_THROUGH_LINKS),
    )
    _check(result, f"mount a copy at {target}")


def pivot_root_to(folder: str) -> None:
    """Make `folder`, a mount point, the root of this mount namespace, and unmount the old root.

    The old root is stacked on the new one and then detached, so no folder is needed for it (pivot_root(2), NOTES).
    """
    os.chdir(folder)
    _check(_libc().pivot_root(b".", b"."), f"pivot_root to {folder}")
    unmount(".", flags=MNT_DETACH)
    os.chdir("/")


def flush_file_system(folder: str) -> None:
    """Flush all written data of a folder's file system to its disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _check(_libc().syncfs(descriptor), f"flush the file system of {folder}")
    finally:
        os.close(descriptor)


def unshare(flags: int) -> None:
    """Leave the namespaces named by `flags` for new ones."""
    _check(_libc().unshare(flags), f"unshare {flags:#x}")


def join_namespace(descriptor: int, *, kind: int) -> None:
    """Enter the namespace of `descriptor`; `kind` is its CLONE_NEW flag."""
    _check(_libc().setns(descriptor, kind), f"setns {kind:#x}")


def set_hostname(name: str) -> None:
    """Set the host name of this UTS namespace."""
    encoded = os.fsencode(name)
    _check(_libc().sethostname(encoded, ctypes.c_size_t(len(encoded))), f"sethostname {name}")


def die_with_parent(signal_number: int) -> None:
    """Request that the kernel send this process `signal_number` when the thread that forked it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal_number)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def remove_shared_memory(number: int) -> None:
    """Remove a System V shared memory segment; its memory is freed when the last process detaches."""
    _check(_libc().shmctl(ctypes.c_int(number), ctypes.c_int(_IPC_RMID), None), f"shmctl {number} IPC_RMID")


def open_signals(number: int) -> int:
    """Return a non-blocking descriptor for reading blocked signals of one number."""
    libc = _libc()
    signals = ctypes.create_string_buffer(_SIGNAL_SET_BYTES)
    libc.sigemptyset(signals)
    libc.sigaddset(signals, ctypes.c_int(number))
    descriptor: int = libc.signalfd(ctypes.c_int(-1), signals, ctypes.c_int(os.O_CLOEXEC | os.O_NONBLOCK))
    _check(min(descriptor, 0), f"signalfd {number}")
    return descriptor


def read_sender(descriptor: int) -> int | None:
    """Read one signal; return the sender's pid in this PID namespace, 0 for a sender outside.

    Return UNKNOWN_SENDER if a process could have invented the pid, None if there is no signal.
    """
    try:
        data = os.read(descriptor, _SIGNAL_INFO.size)
    except BlockingIOError:
        return None
    sender: int
    _, _, code, sender = _SIGNAL_INFO.unpack(data)
    return sender if code in _CODES_WITH_TRUE_SENDER else UNKNOWN_SENDER


def forbid_tracing() -> None:
    """Forbid other processes of this user to trace this process or read its /proc files, until exec."""
    _prctl(_PR_SET_DUMPABLE, 0)


def limit_capabilities(kept: frozenset[int] = KEPT_CAPABILITIES) -> None:
    """Limit the capabilities of programs that this process executes to `kept`; its own stay unchanged."""
    libc = _libc()
    for capability in range(_HIGHEST_CAPABILITY + 1):
        if capability not in kept and libc.prctl(_PR_CAPBSET_READ, ctypes.c_ulong(capability), 0, 0, 0) == 1:
            _prctl(_PR_CAPBSET_DROP, capability)
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    # Inheritable capabilities survive an exec by root despite the bounding set, so they are dropped too.
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    data = (_CapabilityData * 2)()
    _check(libc.capget(ctypes.byref(header), data), "capget")
    for half in data:
        half.inheritable = 0
    _check(libc.capset(ctypes.byref(header), data), "capset")


@contextlib.contextmanager
def files_of(owner: int) -> Iterator[None]:
    """Set this thread's user and group for access to files and for new files."""
    libc = _libc()
    libc.setfsgid(ctypes.c_uint(owner))
    libc.setfsuid(ctypes.c_uint(owner))
    try:
        yield
    finally:
        libc.setfsuid(ctypes.c_uint(os.geteuid()))
        libc.setfsgid(ctypes.c_uint(os.getegid()))


def has_call_filters() -> bool:
    """Whether seccomp's number on this architecture is known and the kernel supports call filters."""
    is_known = os.uname().machine in _SECCOMP_NUMBERS
    return is_known and _libc().prctl(_PR_GET_SECCOMP, 0, 0, 0, 0) >= 0


def filter_calls(instructions: bytes) -> None:
    """Apply a BPF program to every later system call of this process and its descendants.

    no_new_privs is not set, so that set-user-id programs work; the call therefore needs CAP_SYS_ADMIN in the user
    namespace.
    """
    program = _FilterProgram(len(instructions) // 8, instructions)
    number = _SECCOMP_NUMBERS[os.uname().machine]
    for flags in (_SECCOMP_SPECULATION_ALLOWED, 0):  # kernels before 4.17 do not know the flag
        result = _libc().syscall(
            ctypes.c_long(number),
            ctypes.c_uint(_SECCOMP_SET_MODE_FILTER),
            ctypes.c_uint(flags),
            ctypes.byref(program),
        )
        if result == 0:
            return
    _check(result, "seccomp SECCOMP_SET_MODE_FILTER")


def join_new_session_keyring() -> None:
    """Replace the session keyring by an empty keyring. Raises: OSError."""
    number = _KEYCTL_NUMBERS.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, "keyctl: the number of this system call is not known for this architecture")
    result = _libc().syscall(ctypes.c_long(number), ctypes.c_int(_KEYCTL_JOIN_SESSION_KEYRING), None)
    _check(-1 if result < 0 else 0, "keyctl JOIN_SESSION_KEYRING")


def io_priority(pid: int) -> int:
    """Return a process's I/O priority (class and level); -1 if the call's number is unknown here.

    Raises: OSError.
    """
    number = _IOPRIO_GET_NUMBERS.get(os.uname().machine)
    if number is None:
        return -1
    result: int = _libc().syscall(ctypes.c_long(number), ctypes.c_int(_IOPRIO_WHO_PROCESS), ctypes.c_int(pid))
    _check(-1 if result < 0 else 0, f"ioprio_get {pid}")
    return result


def _prctl(option: int, argument: int) -> None:
    result = _libc().prctl(option, ctypes.c_ulong(argument), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))
    _check(result, f"prctl {option} {argument}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
