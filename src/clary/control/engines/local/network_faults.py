"""Cut hosts off a running job's network and connect them again, or slow their links: for tests and rehearsals.

Run: `python -m clary.control.engines.local.network_faults FOLDER HOST up|down|MBIT` does it, with HOST:HOST for the
path between two hosts alone; `partition`, `part` and `limit` run this command, because joining a namespace would change
the calling process. A host that is cut off keeps its interface, address and carrier: its frames never arrive.

[Note: cuts between two]
Each of the two gets a fixed neighbour entry for the other, with an unused Ethernet address. So any pairs can be cut at
the same time, with any kind of switch; isolated ports of a bridge could not do that, because each isolated port is cut
from every other isolated port. Programs are not permitted to change neighbour entries. Hosts use only IPv4 among
themselves; frames of the link watch, which sets their Ethernet addresses itself, still pass.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from pathlib import Path

from clary.base.errors import EngineError
from clary.contract.launch_plan import LaunchPlan
from clary.control.engines.local import anchors
from clary.control.engines.local.attempt_record import NetworkReady, read_ready
from clary.control.engines.local.inside import run_inside
from clary.control.engines.local.network import fabric, namespaces, network_building
from clary.control.engines.local.network.netlink import Netlink
from clary.control.engines.local.network.network_spec import write_json

FULL_MBIT_S = 100_000.0  # above the speed of a veth or TAP link
NOWHERE = b"\x02\xff\xff\xff\xff\xfe"  # locally administered like hosts' addresses, whose second byte is 00


async def partition(pool_folder: str, host: str, *, up: bool) -> None:
    """Cut `host` off its pool's network (`up=False`) or connect it again; a repeated call does nothing.

    Args:
        pool_folder: folder with the ready file of the network's anchor.
        host: name of the host.
        up: whether to connect it.
    Raises: EngineError if the pool has no network of its own, no such host, or its anchor is gone.
    """
    await _change(pool_folder, host, "up" if up else "down")


async def part(plan: LaunchPlan, hosts: tuple[str, str], *, up: bool) -> None:
    """Cut or reconnect the path between two hosts, which still reach all other hosts; repeating does nothing.

    In a job of two hosts this cuts off the second host, as `partition` does.

    Args:
        plan: plan of a running attempt.
        hosts: names of the two hosts.
        up: whether to open the path.
    Raises: EngineError as `partition`.
    """
    if len(plan.hosts) == 2:
        await partition(plan.pool_folder, max(hosts, key=lambda name: plan.host(name).index), up=up)
        return
    await _change(plan.pool_folder, ":".join(hosts), "up" if up else "down")


async def limit(plan: LaunchPlan, host: str, *, rate_mbit_s: float | None) -> None:
    """Limit the link of `host` to this rate, both ways; None: the plan's rate, or no limit.

    Behind the TAP switch only the host's sending is limited: frames to it arrive as fast as before.

    Args:
        plan: plan of a running attempt.
        host: name of the host.
        rate_mbit_s: above 0; None restores the plan's rate, or 100 Gbit/s where the plan has no limit.
    Raises: EngineError as `partition`.
    """
    if rate_mbit_s is None:
        rate_mbit_s = plan.host(host).resources.link.rate_mbit_s or FULL_MBIT_S
    await _change(plan.pool_folder, host, f"{rate_mbit_s:g}")


async def _change(pool_folder: str, host: str, what: str) -> None:
    await run_inside(__name__, pool_folder, host, what, doing=f"{pool_folder}: setting {host} {what}")


def main(arguments: list[str]) -> int:
    """Change a link inside its namespaces, for `partition`, `part` or `limit`; on an error, print it and return 1."""
    folder, host, what = arguments
    try:
        host, _, other = host.partition(":")
        ready = _network_of(Path(folder), host)
        if other:
            _network_of(Path(folder), other)
            _set_way(ready, (host, other), up=what == "up")
        elif what in ("up", "down"):
            _set_connection(ready, Path(folder), host, up=what == "up")
        else:
            _set_rate(ready, host, network_building.bytes_s(float(what)))
    except (OSError, EngineError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _network_of(folder: Path, host: str) -> NetworkReady:
    ready = read_ready(folder)
    if ready is None or not ready.anchor.is_alive():
        raise EngineError("the job has no network of its own, or its anchor is gone")
    if host not in ready.namespaces:
        raise EngineError(f"the job has no host {host!r}; it has {', '.join(ready.namespaces)}")
    return ready


def _set_connection(ready: NetworkReady, folder: Path, host: str, *, up: bool) -> None:
    names = list(ready.namespaces)
    if ready.is_switched_by_us:
        _change_partitions(str(folder / fabric.PARTITIONS_FILE), host, up=up)
        return
    if ready.has_user_namespace:
        _join(f"/proc/{ready.pid}/ns/user", namespaces.CLONE_NEWUSER)
    _join(f"/proc/{ready.pid}/fd/{ready.switch}", namespaces.CLONE_NEWNET)
    with Netlink() as switch:
        switch.set_master(network_building.port_name(names.index(host)), bridge=network_building.BRIDGE if up else None)


def _set_way(ready: NetworkReady, hosts: tuple[str, str], *, up: bool) -> None:
    if ready.has_user_namespace:
        _join(f"/proc/{ready.pid}/ns/user", namespaces.CLONE_NEWUSER)
    ways = (hosts, hosts[::-1])
    try:
        for host, other in ways:
            _set_direction(ready, host, other, up=up)
    except OSError:
        if not up:  # a fault that is reported as failed must have no effect
            for host, other in ways:
                with contextlib.suppress(OSError):
                    _set_direction(ready, host, other, up=True)
        raise


def _set_direction(ready: NetworkReady, host: str, other: str, *, up: bool) -> None:
    names = list(ready.namespaces)
    address, _ = anchors.address_of(names.index(other), len(names))
    _join(f"/proc/{ready.pid}/fd/{ready.namespaces[host]}", namespaces.CLONE_NEWNET)
    with Netlink() as here:
        try:
            here.set_neighbour("eth0", address, hardware_address=None if up else NOWHERE)
        except OSError as error:
            if not up or error.errno != errno.ENOENT:  # the path is open already
                raise


def _set_rate(ready: NetworkReady, host: str, rate_bytes_s: int) -> None:
    if ready.has_user_namespace:
        _join(f"/proc/{ready.pid}/ns/user", namespaces.CLONE_NEWUSER)
    burst = network_building.burst_bytes(rate_bytes_s)
    queue = int(rate_bytes_s * network_building.QUEUE_S) + burst
    places = [(ready.namespaces[host], "eth0")]
    if not ready.is_switched_by_us:  # also limits what the bridge sends to the host
        places.append((ready.switch, network_building.port_name(list(ready.namespaces).index(host))))
    for descriptor, name in places:
        _join(f"/proc/{ready.pid}/fd/{descriptor}", namespaces.CLONE_NEWNET)
        with Netlink() as here:
            here.set_rate(name, rate_bytes_s=rate_bytes_s, burst_bytes=burst, queue_bytes=queue)


def _change_partitions(path: str, host: str, *, up: bool) -> None:
    """Change the list that the TAP switch reads twenty times a second."""
    try:
        with open(path, encoding="utf-8") as file:
            cut = set(json.load(file))
    except FileNotFoundError:
        cut = set()
    cut.difference_update([host]) if up else cut.add(host)
    write_json(path, sorted(cut))


def _join(path: str, kind: int) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        namespaces.setns(descriptor, kind)
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
