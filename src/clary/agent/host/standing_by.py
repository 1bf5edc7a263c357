"""A made host waits for its program, an interpreter ready in it.

Where: between the making of a host that stands by and `keeper`, in the first process. It ends with the start order or
with the agent.
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
from clary.agent.host.mounts import late_binds
from clary.agent.host.program_users import ProgramUsers
from clary.agent.host.zygote_process import MAX_DESCRIPTORS, Zygote


@dataclass(frozen=True, kw_only=True)
class Start:
    """The program that a host that stood by is to run."""

    processes: list[dict[str, Any]]
    not_isolated: list[str]  # what late binds have left shared with the machine, in sentences
    zygote: Zygote


def stand_by(
    order: Mapping[str, Any],
    control: socket.socket,
    *,
    dies_with_keeper: bool,
    in_user_namespace: bool,
    users: ProgramUsers | None,
    confinement: Confinement,
) -> Start | None:
    """Hold an interpreter ready until the start order comes; None if the agent ends the host instead.

    Args:
        order: of the host, with `standby` and `late_roots`.
        control: socket to the agent.
        dies_with_keeper: as for `Keeper`.
        in_user_namespace: whether this process has its rights from a user namespace.
        users: of the programs, if they are others than this process's.
        confinement: what the interpreter enters.

    Raises:
        OSError: a late bind was refused. Nothing of the program has run.
    """
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    roots = order["late_roots"]
    if roots:
        late_binds.share_mounts()
    zygote = Zygote.start(
        order["standby"],
        parent_watched=dies_with_keeper,
        confinement=confinement,
        prepare=late_binds.leave_late_roots if roots else _nothing,
    )
    start = _receive_start(control)
    if start is None:
        zygote.end()
        return None
    not_isolated = late_binds.mount_late_binds(
        start["binds"], roots=roots, in_user_namespace=in_user_namespace, users=users
    )
    return Start(processes=start["processes"], not_isolated=not_isolated, zygote=zygote)


def _receive_start(control: socket.socket) -> dict[str, Any] | None:
    """Wait for the order as long as the agent lives; None at its end."""
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
    """Prepare nothing."""
