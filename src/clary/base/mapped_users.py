"""Users for the programs of a service that runs as root: a range of ids that no user of the machine has.

Where: the anchor (`fabric`), which keeps a job's network, makes a user namespace for the job, because a network
namespace belongs to a user namespace; a host without a network of its own makes a user namespace for itself. Root
inside the namespace is `first_id` on the machine, a user without files. Systemd documents the ids from 1879048192 to
2147483647 as unused, and useradd assigns subordinate ids below them. Each namespace takes one of 4096 ranges by the id
of the process that makes it, so that concurrent jobs seldom share a range. Sharing a range is harmless, because hosts
do not see each other's files.
Source: user_namespaces(7); systemd docs/UIDS-GIDS.md.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from dataclasses import dataclass

from clary.base.shared_limits import enter_limited_users

NUM_IDS = 65536
_FIRST_RANGE = 1_879_048_192
_NUM_RANGES = 4096
_NOBODY = 65534

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_DONE = b"d"


@dataclass(frozen=True, kw_only=True)
class MappedUsers:
    """A user namespace that holds a range of ids."""

    namespace_path: str  # for setns(CLONE_NEWUSER)
    first_id: int  # id on the machine of root inside, as user and as group

    def on_machine(self, inside: int) -> int:
        """Return the machine's id for a user or group id of the namespace."""
        return self.first_id + (inside if 0 <= inside < NUM_IDS else _NOBODY)


def first_id_of(pid: int) -> int:
    """Return the first id of the range for namespaces that process `pid` makes."""
    return _FIRST_RANGE + pid % _NUM_RANGES * NUM_IDS


def make_mapped_namespaces(first_id: int, *, num_networks: int) -> tuple[int, list[int]]:
    """Make a user namespace with a range of ids, and network namespaces that belong to it; needs root on the machine.

    Args:
        first_id: first id of the range.
        num_networks: number of network namespaces.

    Returns: descriptors of the user namespace and of the network namespaces, which exist as long as the descriptors are
    open.

    Raises: OSError; no namespace remains then.
    """
    own_end, child_end = _pipe_pair()
    pid = os.fork()
    if pid == 0:
        for descriptor in own_end:
            os.close(descriptor)
        _make_in_child(child_end, num_networks=num_networks)
    for descriptor in child_end:
        os.close(descriptor)
    opened: list[int] = []
    try:
        _expect_done(own_end, "user namespace")
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{pid}/{name}", "w", encoding="ascii") as file:
                file.write(f"0 {first_id} {NUM_IDS}")
        opened.append(os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC))
        for _ in range(num_networks):
            os.write(own_end[1], _DONE)
            _expect_done(own_end, "network namespace of it")
            opened.append(os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC))
    except BaseException:
        for descriptor in opened:
            os.close(descriptor)
        raise
    finally:
        for descriptor in own_end:
            os.close(descriptor)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
    return opened[0], opened[1:]


def _make_in_child(ends: tuple[int, int], *, num_networks: int) -> None:
    """Enter one namespace after the other and report each; never returns."""
    code = 1
    try:
        enter_limited_users(lambda: _unshare_and_say(_CLONE_NEWUSER, ends))
        for _ in range(num_networks):
            if os.read(ends[0], 1) != _DONE:
                break
            _unshare_and_say(_CLONE_NEWNET, ends)
        os.read(ends[0], 1)  # until the parent has opened the last namespace
        code = 0
    finally:
        os._exit(code)


def _unshare_and_say(flag: int, ends: tuple[int, int]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    number = ctypes.get_errno() if libc.unshare(flag) != 0 else 0
    os.write(ends[1], _DONE if number == 0 else str(number).encode())
    if number:
        os._exit(1)


def _expect_done(ends: tuple[int, int], what: str) -> None:
    said = os.read(ends[0], 16)
    if said != _DONE:
        number = int(said or b"0")
        raise OSError(number, f"{what}: {os.strerror(number) if number else 'the process that made it has died'}")


def _pipe_pair() -> tuple[tuple[int, int], tuple[int, int]]:
    """Return two ends, each with a descriptor to read from and one to write to."""
    first, second = os.pipe(), os.pipe()
    return (first[0], second[1]), (second[0], first[1])
