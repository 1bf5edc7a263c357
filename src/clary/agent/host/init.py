"""First process of a host: it enters the namespaces, builds the root, and runs the program.

Where: `first_process` starts it with the interpreter that runs the agent, an order on standard input (`program_order`)
and a control socket. With namespaces there are two processes: the outer process stays outside and watches the agent,
the inner process is process 1 of the host. The end of either process ends the host: the inner process dies with the
outer process, and the kernel kills a PID namespace whose first process has ended. The outer process cannot use the
parent-death signal instead, because that fires when the agent's *thread* ends.

As in a container by default, no_new_privs is left unset, so that sudo, ping and mpirun's helpers work. With namespaces,
capabilities are Docker's defaults less MKNOD (`kernel.KEPT_CAPABILITIES`), system calls are filtered (`call_filter`),
and the session's keys are dropped; plain processes keep all that the agent has.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from clary.agent.host import kernel
from clary.agent.host.confinement import UNCONFINED, Confinement, make_confinement
from clary.agent.host.keeper import IGNORED_SIGNALS, Keeper
from clary.agent.host.leftovers import remove_cgroups, remove_tree
from clary.agent.host.mounts.host_root import build_host_root
from clary.agent.host.program_users import ProgramUsers, open_program_users, shared_users, why_not_mapped
from clary.agent.host.standing_by import StandingBy
from clary.agent.host.stopping.census import Census, DescendantCensus, NamespaceCensus
from clary.base.shared_limits import enter_limited_users

_FAILED_EXIT_CODE = 70  # sysexits.h EX_SOFTWARE


def main() -> None:
    """Read and execute the order; never return normally before the program has ended."""
    control = socket.socket(fileno=int(sys.argv[1]))
    with open(0, "rb", closefd=False) as file:
        order = json.load(file)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.chdir("/")
    # Some schedulers signal every process of a step. This process ends with the agent, and the program with this
    # process.
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    try:
        _run(order, control)
    except Exception as error:  # noqa: BLE001 - boundary: the agent has to hear of anything that stops a host
        report = {"kind": "failed", "message": f"{type(error).__name__}: {error}"}
        control.send(json.dumps(report).encode())
        sys.exit(_FAILED_EXIT_CODE)


def _run(order: Mapping[str, Any], control: socket.socket) -> None:
    control.set_inheritable(False)
    for process in order["processes"]:
        os.set_inheritable(process["output_fd"], False)
    for path in order["cgroup_files"]:
        with open(path, "w") as file:
            file.write("0")  # this process, and its later descendants
    if order["isolation"] == "processes":
        kernel.adopt_orphans()
        _announce(control)
        _keep(
            order,
            control,
            census=DescendantCensus(),
            dies_with_keeper=True,
            not_isolated=order["not_isolated"],
            confinement=UNCONFINED,
        )
        _clean_up_if_alone(order, control)
        return
    _limit_processes(order["most_processes"])
    in_user_namespace, network = _enter_outer_namespaces(order)
    users, why_no_users = (None, []) if in_user_namespace else open_program_users(order)
    kernel.unshare(kernel.CLONE_NEWPID)
    inner = os.fork()
    if inner == 0:
        kernel.die_with_parent(signal.SIGKILL)
        _keep_host(
            order,
            control,
            network=network,
            in_user_namespace=in_user_namespace,
            users=users,
            why_no_users=why_no_users,
            build_root=lambda users: build_host_root(order, in_user_namespace=in_user_namespace, users=users),
        )
        os._exit(0)
    for process in order["processes"]:
        os.close(process["output_fd"])
    _watch(inner, control)
    _clean_up_if_alone(order, control)


def _limit_processes(most: int | None) -> None:
    """Limit the number of processes per user, if no cgroup counts the host's processes."""
    if most is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


def _enter_outer_namespaces(order: Mapping[str, Any]) -> tuple[bool, int | None]:
    """Enter the user namespace; return whether there is one, and the descriptor of the network namespace to join."""
    network_path, user_path = order["network_namespace_path"], order["user_namespace_path"]
    network = None if network_path is None else os.open(network_path, os.O_RDONLY | os.O_CLOEXEC)
    if user_path is not None:
        user = os.open(user_path, os.O_RDONLY | os.O_CLOEXEC)
        kernel.join_namespace(user, kind=kernel.CLONE_NEWUSER)
        os.close(user)
        _become_root_of_namespace()
    elif os.geteuid() != 0:
        enter_own_user_namespace()
    else:
        return False, network
    return True, network


def enter_own_user_namespace() -> None:
    """Become root of a new user namespace that maps only the current user."""
    user, group = os.geteuid(), os.getegid()
    enter_limited_users(lambda: kernel.unshare(kernel.CLONE_NEWUSER))
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _become_root_of_namespace() -> None:
    """Become the user namespace's root, if it maps one; an unmapped user could not own files."""
    if os.geteuid() != 0:
        with contextlib.suppress(OSError):
            os.setgroups(())
        with contextlib.suppress(OSError):
            os.setresgid(0, 0, 0)
            os.setresuid(0, 0, 0)


def _keep_host(
    order: Mapping[str, Any],
    control: socket.socket,
    *,
    network: int | None,
    in_user_namespace: bool,
    users: ProgramUsers | None,
    why_no_users: list[str],
    build_root: Callable[[ProgramUsers | None], list[str]],
) -> None:
    try:
        kernel.forbid_tracing()
        _announce(control)
        if network is not None:
            kernel.join_namespace(network, kind=kernel.CLONE_NEWNET)
            os.close(network)
        kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWCGROUP)
        kernel.set_hostname(order["hostname"])
        with contextlib.suppress(OSError):  # a kernel without keys, or a container that forbids them
            kernel.join_new_session_keyring()
        kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
        if users is not None:
            users, unmapped = _mapped_or_none(users, order)
            why_no_users = why_no_users or unmapped
        not_isolated = [*why_no_users, *build_root(users)]
        kernel.limit_capabilities()
        confinement, unconfined = make_confinement(users)
        # Requested again: a change of rights may have cleared the earlier request.
        kernel.die_with_parent(signal.SIGKILL)
        _keep(
            order,
            control,
            census=NamespaceCensus(),
            dies_with_keeper=False,
            not_isolated=[*order["not_isolated"], *not_isolated, *unconfined],
            confinement=confinement,
            in_user_namespace=in_user_namespace,
            users=users,
        )
    except Exception as error:  # noqa: BLE001 - boundary: as in main, which this fork never returns to
        report = {"kind": "failed", "message": f"{type(error).__name__}: {error}"}
        control.send(json.dumps(report).encode())
        os._exit(_FAILED_EXIT_CODE)


def _mapped_or_none(users: ProgramUsers, order: Mapping[str, Any]) -> tuple[ProgramUsers | None, list[str]]:
    """Return the programs' users, or None and the reason why these users cannot own files."""
    folders = (order["ml_folder"], order["scratch_folder"])
    if reason := why_not_mapped(users, folders=folders, scratch_folder=order["scratch_folder"]):
        os.close(users.namespace)
        return None, [shared_users(reason)]
    return users, []


def _keep(
    order: Mapping[str, Any],
    control: socket.socket,
    *,
    census: Census,
    dies_with_keeper: bool,
    not_isolated: list[str],
    confinement: Confinement,
    in_user_namespace: bool = False,
    users: ProgramUsers | None = None,
) -> None:
    """Run the program; a standby host first waits for it, and runs further programs if it can."""
    if order["standby"] is None:
        Keeper(
            order["processes"], control, census=census, dies_with_keeper=dies_with_keeper, confinement=confinement
        ).run(not_isolated=not_isolated)
        return
    standing = StandingBy(
        order,
        control,
        census=census,
        dies_with_keeper=dies_with_keeper,
        in_user_namespace=in_user_namespace,
        users=users,
        confinement=confinement,
    )
    is_first = True
    while (start := standing.wait()) is not None:
        if not is_first:
            _announce(control)  # for the next program the agent does not have this pid yet
        is_first = False
        keeper = Keeper(
            start.processes,
            control,
            census=census,
            dies_with_keeper=dies_with_keeper,
            confinement=confinement,
            zygote=standing.zygote,
            waits=start.waits,
        )
        keeper.run(not_isolated=[*not_isolated, *start.not_isolated])
        if not keeper.is_asked_again:
            return
        reason = standing.why_not_again()
        control.send(json.dumps({"kind": "again", "why_not": reason}).encode())
        if reason:
            return
    census.kill_all()


def _watch(inner: int, control: socket.socket) -> None:
    """Wait for the inner process; kill it when the agent's end of the socket is closed."""
    watched = os.pidfd_open(inner)
    poll = select.poll()
    poll.register(watched, select.POLLIN)
    poll.register(control, 0)  # mask 0 still reports POLLHUP; only the inner process reads packets
    agent_gone_at = None
    while True:
        events = dict(poll.poll(None if agent_gone_at is None else 1000))
        if watched in events:
            os.waitpid(inner, 0)
            return
        if agent_gone_at is None:
            agent_gone_at = time.monotonic()
            poll.unregister(control)
        signal.pidfd_send_signal(watched, signal.SIGKILL)


def _clean_up_if_alone(order: Mapping[str, Any], control: socket.socket) -> None:
    """Remove the folder and the cgroups if the agent has died.

    A living agent removes them itself, after it has read the cgroups' counters.
    """
    poll = select.poll()
    poll.register(control, 0)
    if any(event & select.POLLHUP for _, event in poll.poll(0)):
        remove_tree(order["scratch_folder"])
        remove_cgroups(order["cgroup_folders"], home_files=order["cgroup_home_files"])


def _announce(control: socket.socket) -> None:
    """Announce this process's pid to the agent: the socket's credentials carry it, translated to the machine's pids."""
    control.send(json.dumps({"kind": "init"}).encode())
