"""Lasting confinement of a program's process, entered between fork and exec: user namespace, system call filter.

Where: the first process of a host makes one `Confinement` for all processes that it starts; `spawning` enters it in
each process, after all steps that need more rights. The standby interpreter enters it too, and its forks inherit it.
Processes of hosts without namespaces have no confinement: the kernel accepts a filter from an unprivileged process only
if it has no_new_privs, and such a process cannot use set-user-id programs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from clary.agent.host import kernel
from clary.agent.host.call_filter import call_filter
from clary.agent.host.program_users import ProgramUsers


@dataclass(frozen=True, kw_only=True)
class Confinement:
    """A user namespace that a process joins, and a system call filter that it loads."""

    users: ProgramUsers | None = None  # namespace whose root the process becomes; None: it keeps its user
    calls: bytes = b""  # system call filter; empty: no filter

    def enter(self) -> None:
        """Join the namespace and load the filter. Raises: OSError; then the process must not execute the program."""
        if self.users is not None:
            self.users.enter()
        if self.calls:
            kernel.filter_calls(self.calls)


def make_confinement(users: ProgramUsers | None) -> tuple[Confinement, list[str]]:
    """Return the confinement of this host's processes, and sentences about missing isolation.

    Args:
        users: of the programs, if they differ from this process's user.
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
