"""Rights that a process of a program drops for good between fork and exec: the machine's users, system calls.

Where: the first process of a host makes one for all processes that it starts; `spawning` enters it in each of them,
after everything that takes more rights is done. The interpreter that stands by enters it too, and what it forks stays
in it. Plain processes enter none: the kernel takes a filter from those alone who have given up set-user-id programs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from clary.agent.host import kernel
from clary.agent.host.call_filter import call_filter
from clary.agent.host.program_users import ProgramUsers


@dataclass(frozen=True, kw_only=True)
class Confinement:
    """Users and a system call filter to enter."""

    users: ProgramUsers | None = None  # to become root of; None to stay who it is
    calls: bytes = b""  # filter of system calls; empty for none

    def enter(self) -> None:
        """Enter it. Raises: OSError; the process must not execute the program then."""
        if self.users is not None:
            self.users.enter()
        if self.calls:
            kernel.filter_calls(self.calls)


def make_confinement(users: ProgramUsers | None) -> tuple[Confinement, list[str]]:
    """Return the confinement of this host's processes, and sentences on everything that is not isolated.

    Args:
        users: of the programs, if they are others than this process's.
    """
    machine = os.uname().machine
    calls = call_filter(machine)
    if calls is None:
        return Confinement(users=users), [f"System calls: none is refused, because Clary has no filter for {machine}."]
    if not kernel.has_call_filters():
        return Confinement(users=users), [
            "System calls: none is refused, because this kernel takes no filter (CONFIG_SECCOMP)."
        ]
    return Confinement(users=users, calls=calls), []


UNCONFINED = Confinement()
