"""Leftovers on the machine: the difference of two censuses, each item with its owner and remedy. Pure.

Where: `machine_census` takes a census; `LocalEngine.leftovers`, and through it `clary doctor`, use this module to
describe the leftovers of a released attempt. The tests use it to check for leftovers after each test.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The kind of a leftover; the value is its name in sentences."""

    PROCESS = "process"
    ZOMBIE = "zombie"
    REGISTERED_NAMESPACE = "network namespace"
    HELD_NAMESPACE = "unnamed network namespace"
    MOUNT = "mount"
    CGROUP = "cgroup"
    LINK = "network link"
    SHARED_MEMORY = "shared memory"
    IPC_MEMORY = "System V shared memory"
    IPC_SEMAPHORES = "System V semaphores"
    IPC_QUEUE = "System V message queue"
    SOCKET = "socket"
    FOLDER = "folder"


# Innermost first: a process holds mounts and memory, which disappear or can be removed after its end.
_ORDER = {kind: place for place, kind in enumerate(Kind)}


@dataclass(frozen=True, kw_only=True)
class Thing:
    """One item of a census, such as a process, a mount or a socket.

    Args:
        kind: kind of the item.
        name: name as the removing command takes it: a pid, a path, an id.
        identity: distinguishes the item from a later item with the same name: a process's start time, a file's inode.
        holder: pid of the process on which the item depends: a zombie's parent, the holder of an unnamed namespace.
        owner: text on the owner; empty if unknown. Not part of the item's identity.
        detail: more information to recognise the item: a command line, a size.
    """

    kind: Kind
    name: str
    identity: str = ""
    holder: int = 0
    owner: str = ""
    detail: str = ""

    @property
    def key(self) -> tuple[Kind, str, str]:
        """The identity of the item."""
        return self.kind, self.name, self.identity

    @property
    def removal(self) -> str:
        """The command that removes the item."""
        name = shlex.quote(self.name)
        match self.kind:
            case Kind.PROCESS:
                return f"kill -9 {name}"
            case Kind.ZOMBIE:
                # ends the zombie's parent, which does not reap it; the process that then adopts the zombie will
                return f"kill {self.holder}"
            case Kind.HELD_NAMESPACE:
                return f"kill -9 {self.holder}"
            case Kind.REGISTERED_NAMESPACE:
                return f"ip netns delete {name}"
            case Kind.MOUNT:
                return f"umount -l {name}"
            case Kind.CGROUP:
                return f"rmdir {name}"
            case Kind.LINK:
                return f"ip link delete {name}"
            case Kind.IPC_MEMORY:
                return f"ipcrm -m {name}"
            case Kind.IPC_SEMAPHORES:
                return f"ipcrm -s {name}"
            case Kind.IPC_QUEUE:
                return f"ipcrm -q {name}"
            case Kind.SHARED_MEMORY | Kind.SOCKET:
                return f"rm {name}"
            case Kind.FOLDER:
                return f"rm -rf {name}"

    def __str__(self) -> str:
        """Return a sentence with the item's name, its owner and the command that removes it."""
        detail = f" ({self.detail})" if self.detail else ""
        owner = f" of {self.owner}" if self.owner else ""
        return f"{self.kind} {self.name}{detail}{owner}; remove it: {self.removal}"


def left_behind(
    before: Iterable[Thing], after: Iterable[Thing], *, is_legitimate: Callable[[Thing], bool] = lambda _: False
) -> list[Thing]:
    """Return the items that are only in the later census, in the best order of removal.

    Args:
        before: the earlier census.
        after: the later census.
        is_legitimate: returns whether an item may exist, for example because its job still runs.
    """
    known = {thing.key for thing in before}
    found = {thing.key: thing for thing in after if thing.key not in known and not is_legitimate(thing)}
    return sorted(found.values(), key=lambda thing: (_ORDER[thing.kind], thing.name))
