"""The network program of one host: it joins the network namespace, tries the job's own ports, measures links.

Run: `python -m clary.agent.health.network_program PARENT_PID`, with a `NetworkOrder` on standard input.
`network_doctor` starts it during the preparation of the host. It prints a `PortReading`, then a `NetworkReading`;
afterwards it answers peers until they have finished too. It is killed when its parent ends.

The job's program waits for the first line, so the code before that line imports as little as possible. After the first
line only `DOCTOR_PORT` is used, because programs of the job then listen at the job's ports.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from clary.agent.health import interfaces
from clary.agent.health.port_check import unanswered_ports
from clary.agent.host import kernel

NETWORK_GONE_EXIT_CODE = 4
_ORPHANED_EXIT_CODE = 3


def main() -> int:
    """Read and execute the order, and print the readings."""
    kernel.die_with_parent(signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):  # the parent ended before this request to the kernel
        return _ORPHANED_EXIT_CODE
    # Schedulers such as Slurm signal every process of a job step; this one must end only with its parent, the agent.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    order = json.load(sys.stdin)
    try:
        _join(order["network_namespace"], order["user_namespace"])
    except FileNotFoundError:  # the network was removed after the order was given: not an error of this program
        return NETWORK_GONE_EXIT_CODE
    taken = [port for port in order["ports"] if interfaces.is_taken(port)]
    unanswered = unanswered_ports(
        {peer["name"]: peer["address"] for peer in order["peers"]},
        order["ports"],
        interface=order["interface"],
        address=order["address"],
        round_trip_s=max(peer["round_trip_ms"] for peer in order["peers"]) / 1000,
    )
    if not unanswered:
        print(json.dumps({"taken": taken, "silent": {}}), flush=True)
        time.sleep(order["pause_s"])
    _measure(order, taken, unanswered)
    return 0


def _measure(order: dict[str, object], taken: list[int], unanswered: dict[str, list[int]]) -> None:
    # imported late: saves 27 ms, mostly asyncio, before the first printed line
    from clary.agent.health import network_measuring
    from clary.agent.health.readings import NetworkOrder
    from clary.base.plain import from_plain

    network_measuring.run(from_plain(NetworkOrder, order), taken, unanswered)


def _join(network_namespace: str | None, user_namespace: str | None) -> None:
    network = None if network_namespace is None else os.open(network_namespace, os.O_RDONLY | os.O_CLOEXEC)
    if user_namespace is not None:
        user = os.open(user_namespace, os.O_RDONLY | os.O_CLOEXEC)
        kernel.join_namespace(user, kind=kernel.CLONE_NEWUSER)
        os.close(user)
    if network is not None:
        kernel.join_namespace(network, kind=kernel.CLONE_NEWNET)
        os.close(network)


if __name__ == "__main__":
    sys.exit(main())
