"""The wait of a standby host, with a ready interpreter, for its program, and for later programs if the host lasts.

Where: in the first process, between the creation of a standby host and `keeper`. The wait ends with the start order or
with the agent.

[Note: one host for several programs]
The agent ensures that successive programs in a host have one owner and differ only in their data. After a program's
last process has ended, its binds are unmounted and the host is compared with its earlier state (`mounts.traces`). If
the program has left no trace, the host waits for the next program. The interpreter has run no code of any program, and
programs cannot influence it: it cannot be traced, and it blocks every signal that can be blocked. SIGKILL ends it; the
host is then discarded.
"""

from __future__ import annotations

import array
import json
import os
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clary.agent.host.confinement import Confinement
from clary.agent.host.keeper import IGNORED_SIGNALS, MAX_MESSAGE_BYTES
from clary.agent.host.mounts.late_binds import LateBinds, leave_late_roots, place_on_roots, share_mounts
from clary.agent.host.mounts.traces import Traces
from clary.agent.host.program_users import ProgramUsers
from clary.agent.host.stopping.census import Census, NamespaceCensus
from clary.agent.host.zygote_process import MAX_DESCRIPTORS, Zygote


@dataclass(frozen=True, kw_only=True)
class Start:
    """The program for a standby host to run."""

    processes: list[dict[str, Any]]
    not_isolated: list[str]  # sentences about late binds that share files with the machine
    waits: bool  # whether the program begins at a later message


class StandingBy:
    """A standby host with a ready interpreter.

    Args:
        order: of the host, with `standby` and `late_roots`.
        control: socket to the agent.
        census: of the host; a lasting interpreter is exempt from it.
        dies_with_keeper: as for `Keeper`.
        in_user_namespace: whether this process has its rights only in a user namespace.
        users: users of the programs, if they differ from this process's user.
        confinement: the confinement that the interpreter enters.
    """

    def __init__(
        self,
        order: Mapping[str, Any],
        control: socket.socket,
        *,
        census: Census,
        dies_with_keeper: bool,
        in_user_namespace: bool,
        users: ProgramUsers | None,
        confinement: Confinement,
    ) -> None:
        for number in IGNORED_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        roots = order["late_roots"]
        # Without the filter a program could leave keys in the session keyring that it shares with the interpreter.
        lasts = (
            bool(order["standby"]["lasts"] and roots and confinement.calls)
            and isinstance(census, NamespaceCensus)
            and census.can_keep
        )
        self._control = control
        self._binds = LateBinds(roots=roots, keeps_roots=lasts, in_user_namespace=in_user_namespace, users=users)
        self._traces = Traces(place_on_roots(order["scratch_folder"], roots)) if lasts else None
        if roots:
            share_mounts()
        self.zygote = Zygote.start(
            {**order["standby"], "lasts": lasts},
            parent_watched=dies_with_keeper,
            confinement=confinement,
            prepare=leave_late_roots if roots else _nothing,
        )
        if lasts and isinstance(census, NamespaceCensus):
            census.keep(self.zygote.pid)

    def wait(self) -> Start | None:
        """Wait for the start order with a ready interpreter; return None if the agent ends the host instead.

        Raises:
            OSError: a late bind was refused. No process of the program has run.
        """
        start = _receive_start(self._control)
        if start is None:
            self.zygote.end()
            return None
        if self._traces is not None:
            self._traces.begin()
        not_isolated = self._binds.mount(start["binds"])
        if self._traces is not None:
            self._traces.begin_program()
        return Start(processes=start["processes"], not_isolated=not_isolated, waits=start["waits"])

    def why_not_again(self) -> str:
        """Unmount the binds of an ended program; return "", or the reason why no other program can follow."""
        if self._traces is None:
            return "its interpreter serves one program"
        if self._binds.why_final:
            return self._binds.why_final
        try:
            self._binds.unmount()
            trace = self._traces.find()
            unfit = self.zygote.why_unfit()
        except OSError as error:
            return f"it could not be put in order: {error}"
        if trace:
            return f"the program has left a trace: {trace}"
        return unfit


def _receive_start(control: socket.socket) -> dict[str, Any] | None:
    """Wait for the start order; return None if the agent has ended."""
    space = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)
    try:
        data, ancillary, _, _ = control.recvmsg(MAX_MESSAGE_BYTES, space, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:
        return None
    if not data or json.loads(data)["kind"] != "start":
        return None
    descriptors = array.array("i")
    for _, kind, content in ancillary:
        if kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    order_fd, *output_fds = descriptors
    with open(order_fd, "rb") as file:
        start: dict[str, Any] = json.load(file)
    for process, output_fd in zip(start["processes"], output_fds, strict=True):
        process["output_fd"] = output_fd
        os.set_inheritable(output_fd, False)
    return start


def _nothing() -> None:
    """Do nothing, because without late roots no preparation is needed."""
