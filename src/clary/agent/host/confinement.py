"""What a process of a program gives up between fork and exec: rights over the kernel, for good.

Where: the first process of a host makes one for all processes that it starts; `spawning` enters it in each of them,
after everything that takes more rights is done. The interpreter that stands by enters it too, and what it forks stays
in it. Plain processes enter none: the kernel takes a filter from those alone who have given up set-user-id programs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from clary.agent.host import kernel
from clary.agent.host.call_filter import call_filter


@dataclass(frozen=True, kw_only=True)
class Confinement:
    """What to enter."""

    calls: bytes = b""  # filter of system calls; empty for none

    def enter(self) -> None:
        """Enter it. Raises: OSError; the process must not execute the program then."""
        if self.calls:
            kernel.filter_calls(self.calls)


def make_confinement() -> tuple[Confinement, list[str]]:
    """Return the confinement of this host's processes, and what is not isolated, in sentences."""
    machine = os.uname().machine
    calls = call_filter(machine)
    if calls is None:
        return Confinement(), [f"System calls: none is refused, because Clary has no filter for {machine}."]
    if not kernel.has_call_filters():
        return Confinement(), ["System calls: none is refused, because this kernel takes no filter (CONFIG_SECCOMP)."]
    return Confinement(calls=calls), []


UNCONFINED = Confinement()
