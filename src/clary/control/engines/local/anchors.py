"""Starts and finds the anchor of a job's network.

Where: `LocalEngine.launch` calls it in a thread. `fabric` is the anchor itself, the process that holds the network
namespaces of the hosts. It locks its folder, so that two services, or a service that was killed and started again,
never make two networks for one pool.
"""

from __future__ import annotations

import hashlib
import ipaddress
import logging
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from clary.base.errors import EngineError
from clary.base.mapped_users import MappedUsers
from clary.contract.launch_plan import HostPlan, LaunchPlan, NetworkPlan
from clary.control.egress import own_addresses
from clary.control.egress.outlets import Outlet
from clary.control.engines.local import agent_processes
from clary.control.engines.local.agent_processes import LastingProcess
from clary.control.engines.local.attempt_record import NetworkReady, read_ready
from clary.control.engines.local.network.fabric import EXIT_FAILED, EXIT_HELD
from clary.control.engines.local.network.network_spec import (
    SPEC_FILE,
    HostSpec,
    NetworkSpec,
    RelaySpec,
    read_spec,
    write_spec,
)

log = logging.getLogger(__name__)

ANCHOR_LOG = "anchor.log"
ANCHOR_TIMEOUT_S = 30.0  # limit for making a network; measured for 3 hosts: 0.15 s
POLL_S = 0.005
NETWORK_BASE = ipaddress.IPv4Address("10.77.0.0")
SMALL_PREFIX, SMALL_HOSTS, LARGE_PREFIX = 24, 250, 16
FIRST_SOURCE, NUM_SOURCES = ipaddress.IPv4Address("127.64.0.1"), (1 << 22) - 2  # last address: 127.127.255.254
NETWORK = ipaddress.IPv4Network((NETWORK_BASE, LARGE_PREFIX))
ANCHOR_COMMAND = (sys.executable, "-P", "-S", "-m", "clary.control.engines.local.network.fabric")

# Starts a command with its log and returns the child, which the engine reaps.
Start = Callable[[Sequence[str], Path], LastingProcess]


def relays_to(urls: Sequence[str]) -> tuple[RelaySpec, ...]:
    """Return the relays that make these URLs of the service reachable inside hosts, too.

    A service that listens on every address is reached on 127.0.0.1.
    Raises: EngineError for a URL without host or port, and for a host whose name cannot be resolved.
    """
    relays = {}
    for url in urls:
        parts = urlsplit(url)
        if not parts.hostname or not parts.port:
            raise EngineError(f"service URL {url!r}: expected scheme://host:port")
        try:
            found = socket.getaddrinfo(parts.hostname, parts.port, socket.AF_INET, socket.SOCK_STREAM)
        except OSError as error:
            raise EngineError(f"service URL {url!r}: {parts.hostname} cannot be resolved: {error}") from error
        address = str(found[0][4][0])
        relays[parts.port] = RelaySpec(
            port=parts.port,
            target_address="127.0.0.1" if address == "0.0.0.0" else address,  # noqa: S104 - compared, not bound
            target_port=parts.port,
        )
    return tuple(relays.values())


def relays_of(outlets: Sequence[Outlet], own: Sequence[RelaySpec]) -> tuple[RelaySpec, ...]:
    """Return the relays that make outlets reachable inside hosts under their own addresses.

    Args:
        outlets: addresses and ports in the owner's network.
        own: relays to the service, whose ports stay reserved.
    """
    taken = {(relay.address, relay.port) for relay in own}
    names: dict[tuple[str, int], list[str]] = {}
    for outlet in outlets:
        names.setdefault((outlet.address, outlet.port), []).extend([outlet.name] if outlet.name else [])
    return tuple(
        RelaySpec(
            port=port,
            target_address=address,
            target_port=port,
            address=address,
            names=tuple(names_of_place),
            rides_restarts=False,
        )
        for (address, port), names_of_place in names.items()
        if (address, port) not in taken
    )


def address_of(index: int, num_hosts: int) -> tuple[str, int]:
    """Return address and prefix length of host number `index` (0 for algo-1) on a network of `num_hosts`."""
    if num_hosts <= SMALL_HOSTS:
        return str(NETWORK_BASE + index + 1), SMALL_PREFIX
    return str(NETWORK_BASE + index // SMALL_HOSTS * 256 + index % SMALL_HOSTS + 1), LARGE_PREFIX


def network_spec(plan: LaunchPlan, folder: Path, relays: Sequence[RelaySpec]) -> NetworkSpec:
    """Return the spec of the plan's network.

    Args:
        plan: plan with the hosts and their links.
        folder: folder of the pool; the source address of its relays' connections to the service is derived from it.
        relays: ports of every host that are relayed out of the host.
    """

    def host_spec(host: HostPlan) -> HostSpec:
        link = host.resources.link
        return HostSpec(
            name=host.name,
            address=address_of(host.index, len(plan.hosts))[0],
            rate_mbit_s=link.rate_mbit_s,
            delay_ms=link.delay_ms,
            loss_percent=link.loss_percent,
        )

    return NetworkSpec(
        folder=str(folder),
        prefix_length=address_of(0, len(plan.hosts))[1],
        hosts=tuple(host_spec(host) for host in plan.hosts),
        relays=tuple(_with_source(relay, source_of(folder)) for relay in relays),
    )


def source_of(folder: Path) -> str:
    """Return the loopback source address of a network's connections to the service.

    By this address the service distinguishes a job's programs from programs of other jobs and from its owner. Two
    networks with the same address merely share the limits of one client.
    """
    number = int.from_bytes(hashlib.sha256(str(folder).encode()).digest()[:3], "big") % NUM_SOURCES
    return str(FIRST_SOURCE + number)


def _with_source(relay: RelaySpec, source: str) -> RelaySpec:
    """Return a relay with a loopback source address, if its target can be reached from a loopback address.

    Such targets are loopback addresses and, if setting `host` is an address of this machine, the service itself:
    packets to it stay on the loopback interface. Targets in the owner's network see the machine's address.
    """
    is_local = relay.target_address.startswith("127.") or (relay.rides_restarts and _is_own(relay.target_address))
    return relay._replace(source_address=source) if is_local else relay


def _is_own(address: str) -> bool:
    try:
        return own_addresses.is_own(ipaddress.IPv4Address(address))
    except OSError as error:
        log.warning("connections of jobs to %s count as this machine's own: %s", address, error)
        return False


def ensure_anchor(spec: NetworkSpec, *, start: Start) -> NetworkReady:
    """Return the ready file of a network's living anchor, after starting an anchor if needed; blocks.

    Raises: EngineError with the anchor's error.
    """
    folder = Path(spec.folder)
    log_path = folder / ANCHOR_LOG
    deadline = time.monotonic() + ANCHOR_TIMEOUT_S
    child: LastingProcess | None = None
    while time.monotonic() < deadline:
        ready = read_ready(folder)
        if ready is not None and ready.error is None and ready.anchor.is_alive():
            return ready
        if child is None:
            child = start((*ANCHOR_COMMAND, write_spec(spec)), log_path)
        code = child.poll()
        if code == EXIT_HELD:
            child = None  # another anchor has locked the folder: it is ready soon, or has just ended
            time.sleep(10 * POLL_S)
        elif code is not None:
            ready = read_ready(folder)
            if code == EXIT_FAILED and ready is not None and ready.pid == child.pid:
                raise EngineError(f"the network of the job could not be made: {ready.error}", retryable=True)
            said = agent_processes.last_words(log_path)
            raise EngineError(
                f"the anchor of the job's network ended with exit code {code}: {said}",
                retryable=True,
            )
        time.sleep(POLL_S)
    raise EngineError(
        f"the anchor of the job's network was not ready after {ANCHOR_TIMEOUT_S:g} s; see {log_path}", retryable=True
    )


def with_network(plan: LaunchPlan, ready: NetworkReady, folder: Path) -> LaunchPlan:
    """Return the plan with the network of the anchor of this folder.

    Args:
        plan: plan without addresses.
        ready: ready file of that anchor, which must live as long as hosts use its namespaces.
        folder: folder of the pool, with the network's spec.
    Raises: EngineError if the anchor's spec cannot be read now.
    """
    num_hosts = len(plan.hosts)
    try:
        # The names with which the anchor was started: it may be older than this launch, and a name's address may
        # change.
        relayed_names = read_spec(str(folder / SPEC_FILE)).relayed_names
    except (OSError, ValueError, KeyError, TypeError) as error:
        # The anchor writes the file again within seconds.
        raise EngineError(f"{folder / SPEC_FILE}: cannot be read: {error}", retryable=True) from error
    network = NetworkPlan(
        interface="eth0",
        prefix_length=address_of(0, num_hosts)[1],
        anchor_pid=ready.pid,
        namespace_paths={name: f"/proc/{ready.pid}/fd/{descriptor}" for name, descriptor in ready.namespaces.items()},
        user_namespace_path=f"/proc/{ready.pid}/ns/user" if ready.has_user_namespace else None,
        master_port=NetworkPlan().master_port,
        relayed_names=relayed_names,
    )
    if ready.users >= 0:
        users = MappedUsers(namespace_path=f"/proc/{ready.pid}/fd/{ready.users}", first_id=ready.first_id)
        network = replace(network, mapped_users=users)
    hosts = tuple(replace(host, address=address_of(host.index, num_hosts)[0]) for host in plan.hosts)
    return replace(plan, network=network, hosts=hosts)


def without_network(plan: LaunchPlan, *, master_port: int) -> LaunchPlan:
    """Return the plan for hosts that share the machine's network."""
    network = NetworkPlan(interface="lo", prefix_length=8, anchor_pid=None, master_port=master_port)
    return replace(plan, network=network, hosts=tuple(replace(host, address="127.0.0.1") for host in plan.hosts))
