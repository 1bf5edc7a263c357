"""The system call filter for the programs of a host with namespaces, as classic BPF for seccomp(2).

Where: the first process makes the filter once; each process of the program loads it before exec, or inherits it
(`confinement`).

The filter refuses the calls that Docker's default profile refuses to a container without extra capabilities: mounts,
namespaces, keys, kernel modules, tracing of the kernel, clocks, file handles, io_uring, unusual personalities. A
refused call fails with EPERM, as in a container. clone3 fails with ENOSYS, because a filter cannot read its flags; the
C library then falls back to clone. Every call newer than Linux 6.17 fails with ENOSYS too. All calls of another ABI
fail: with EPERM for 32 bits, with ENOSYS for x32. Unlike Docker, the filter permits NUMA policies (mbind and similar
calls), pidfd_getfd and kcmp: they reach only the caller's own processes, and libraries for collectives use them.
Source: seccomp(2); moby profiles/seccomp/default.json; numbers from asm/unistd_64.h and asm-generic/unistd.h.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Mapping
from typing import NamedTuple

_EPERM = 0x00050000 | errno.EPERM  # SECCOMP_RET_ERRNO
_ENOSYS = 0x00050000 | errno.ENOSYS
_ALLOW = 0x7FFF0000  # SECCOMP_RET_ALLOW

# linux/bpf_common.h
_LOAD, _RETURN = 0x20, 0x06  # BPF_LD | BPF_W | BPF_ABS, BPF_RET | BPF_K
_IF_EQUAL, _IF_GREATER, _IF_ANY_BIT = 0x15, 0x25, 0x45  # BPF_JMP | BPF_JEQ, BPF_JGT, BPF_JSET, all with BPF_K

# struct seccomp_data
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16  # the low half of the first argument, little endian

_NAMESPACE_FLAGS = 0x7E020000  # every CLONE_NEW flag except CLONE_NEWTIME
_TIME_NAMESPACE_FLAG = 0x80  # for unshare only: in clone's flags this bit belongs to the signal
# Personalities that Docker permits: Linux, Linux of 32 bits, both with a kernel version like 2.6, and the query.
# Others turn off protections of memory: random addresses, non-executable pages.
_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
_AF_VSOCK = 40  # reaches the hypervisor, bypassing the host's network
_HIGHEST_KNOWN = 469  # highest number of a call of Linux 6.17, on both architectures

# Calls with the same number on every architecture.
_REFUSED_EVERYWHERE = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "open_tree_attr": 467,
}
_CLONE3 = 435


class _Machine(NamedTuple):
    """The numbers that a filter needs for one architecture."""

    audit_number: int  # linux/audit.h
    clone: int
    unshare: int
    socket: int
    personality: int
    refused: Mapping[str, int]


_X86_64 = _Machine(
    audit_number=0xC000003E,
    clone=56,
    unshare=272,
    socket=41,
    personality=135,
    refused={
        "uselib": 134,
        "ustat": 136,
        "sysfs": 139,
        "vhangup": 153,
        "pivot_root": 155,
        "_sysctl": 156,
        "acct": 163,
        "settimeofday": 164,
        "mount": 165,
        "umount2": 166,
        "swapon": 167,
        "swapoff": 168,
        "reboot": 169,
        "sethostname": 170,
        "setdomainname": 171,
        "iopl": 172,
        "ioperm": 173,
        "create_module": 174,
        "init_module": 175,
        "delete_module": 176,
        "get_kernel_syms": 177,
        "query_module": 178,
        "quotactl": 179,
        "nfsservctl": 180,
        "syslog": 103,
        "lookup_dcookie": 212,
        "clock_settime": 227,
        "kexec_load": 246,
        "add_key": 248,
        "request_key": 249,
        "keyctl": 250,
        "perf_event_open": 298,
        "fanotify_init": 300,
        "open_by_handle_at": 304,
        "setns": 308,
        "finit_module": 313,
        "kexec_file_load": 320,
        "bpf": 321,
        "userfaultfd": 323,
    },
)
_AARCH64 = _Machine(
    audit_number=0xC00000B7,
    clone=220,
    unshare=97,
    socket=198,
    personality=92,
    refused={
        "lookup_dcookie": 18,
        "umount2": 39,
        "mount": 40,
        "pivot_root": 41,
        "nfsservctl": 42,
        "vhangup": 58,
        "quotactl": 60,
        "acct": 89,
        "kexec_load": 104,
        "init_module": 105,
        "delete_module": 106,
        "clock_settime": 112,
        "syslog": 116,
        "reboot": 142,
        "sethostname": 161,
        "setdomainname": 162,
        "settimeofday": 170,
        "add_key": 217,
        "request_key": 218,
        "keyctl": 219,
        "swapon": 224,
        "swapoff": 225,
        "perf_event_open": 241,
        "fanotify_init": 262,
        "open_by_handle_at": 265,
        "setns": 268,
        "finit_module": 273,
        "bpf": 280,
        "userfaultfd": 282,
        "kexec_file_load": 294,
    },
)
_MACHINES = {"x86_64": _X86_64, "aarch64": _AARCH64}


def call_filter(machine: str) -> bytes | None:
    """Return the filter as an array of `struct sock_filter`; None for an architecture without table.

    Args:
        machine: name of the architecture, as in `os.uname`.
    """
    table = _MACHINES.get(machine)
    return None if table is None else _assemble(table)


def refused_calls(machine: str) -> Mapping[str, int]:
    """Return names and numbers of the calls that fail with EPERM regardless of their arguments."""
    return {**_REFUSED_EVERYWHERE, **_MACHINES[machine].refused}


def _assemble(machine: _Machine) -> bytes:
    numbers = sorted({*_REFUSED_EVERYWHERE.values(), *machine.refused.values()})
    # Built from the verdicts backwards, because jumps go forwards and count the skipped instructions.
    lines: list[tuple[int, int, int, int]] = [
        (_RETURN, 0, 0, _EPERM),
        (_RETURN, 0, 0, _ENOSYS),
        (_RETURN, 0, 0, _ALLOW),
    ]
    refuse, unknown, allow = 3, 2, 1  # positions, counted from the end

    def put(code: int, value: int, *, yes: int | None = None, no: int | None = None) -> int:
        """Prepend an instruction; return its position, counted from the end."""
        behind = len(lines)
        jumps = [0 if place is None else behind - place for place in (yes, no)]
        lines.insert(0, (code, jumps[0], jumps[1], value))
        return len(lines)

    put(_IF_EQUAL, _AF_VSOCK, yes=refuse, no=allow)
    of_socket = put(_LOAD, _FIRST_ARGUMENT_AT)
    put(_RETURN, _EPERM)
    for value in _PERSONALITIES:
        put(_IF_EQUAL, value, yes=allow)
    of_personality = put(_LOAD, _FIRST_ARGUMENT_AT)
    put(_IF_ANY_BIT, _NAMESPACE_FLAGS | _TIME_NAMESPACE_FLAG, yes=refuse, no=allow)
    of_unshare = put(_LOAD, _FIRST_ARGUMENT_AT)
    put(_IF_ANY_BIT, _NAMESPACE_FLAGS, yes=refuse, no=allow)
    of_clone = put(_LOAD, _FIRST_ARGUMENT_AT)
    put(_IF_EQUAL, machine.personality, yes=of_personality, no=allow)
    put(_IF_EQUAL, machine.socket, yes=of_socket)
    put(_IF_EQUAL, machine.unshare, yes=of_unshare)
    put(_IF_EQUAL, machine.clone, yes=of_clone)
    for number in numbers:
        put(_IF_EQUAL, number, yes=refuse)
    put(_IF_EQUAL, _CLONE3, yes=unknown)
    put(_IF_GREATER, _HIGHEST_KNOWN, yes=unknown)  # these include the numbers of x32
    put(_LOAD, _NUMBER_AT)
    other_abi = put(_RETURN, _EPERM)
    put(_IF_EQUAL, machine.audit_number, yes=other_abi - 1, no=other_abi)
    put(_LOAD, _ARCHITECTURE_AT)
    return b"".join(struct.pack("HBBI", *line) for line in lines)
