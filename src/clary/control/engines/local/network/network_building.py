"""The namespaces, links and listeners of one job's network, made through the kernel.

Where: the anchor (`fabric`) calls `build` and keeps the returned `Network` open. Standard library only.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from typing import Any, NamedTuple

from clary.base import mapped_users
from clary.control.engines.local.network import namespaces
from clary.control.engines.local.network.netlink import Netlink
from clary.control.engines.local.network.network_spec import LOOPBACK, HostSpec, NetworkSpec, RelaySpec

CAP_NET_ADMIN, CAP_SYS_ADMIN = 12, 21  # linux/capability.h
BRIDGE = "br0"

# Token bucket: 2 ms of the rate, never less than one 32 KiB write, not less than 256 KiB from 1 Gbit/s on, and never
# more than 1 MiB. Measured with tbf on veth, such a bucket reaches at least 95 % of the rate from 100 Mbit/s to 10
# Gbit/s.
BURST_S = 0.002
MIN_BURST_BYTES = 32 * 1024
GIGABIT_BYTES_S = 125_000_000
MIN_GIGABIT_BURST_BYTES = 256 * 1024
MAX_BURST_BYTES = 1024 * 1024
QUEUE_S = 0.05  # longest time for which a sender's data queues at its token bucket


class FabricError(Exception):
    """A network that could not be made; the text names the step and the kernel's error."""


class Network(NamedTuple):
    """The network that was made."""

    host_descriptors: dict[str, int]
    switch_descriptor: int
    has_user_namespace: bool
    users: int  # descriptor of the programs' user namespace; -1 if they stay in the caller's
    first_id: int  # first user id of that namespace
    why_no_users: str  # why root could not make the namespace; empty on success, or if the anchor is not root
    listeners: list[tuple[socket.socket, RelaySpec]]
    ports: list[Any]  # tap_switch.Port; empty with a bridge
    links: list[socket.socket]  # of the link watch, one per host; empty where links are not watched


class _Owned(NamedTuple):
    """A user namespace for programs, and network namespaces that belong to it."""

    users: int
    first_id: int
    networks: list[int]


def build(spec: NetworkSpec) -> Network:
    """Make all namespaces, links and listeners; the calling thread stays in its own network namespace.

    Raises: FabricError naming the step; namespaces made so far vanish with the process.
    """
    has_user_namespace = not is_network_admin()
    if has_user_namespace:
        _step("user namespace", namespaces.enter_own_user_namespace)
    owned, why_no_users = None, ""
    if not has_user_namespace:
        try:
            owned = _Owned(*_make_owned(len(spec.hosts) + 1))
        except OSError as error:
            why_no_users = f"{error.strerror or error}{namespaces.user_namespace_hint()}"
            print(f"programs get the users of this machine: {why_no_users}", file=sys.stderr, flush=True)
    # A thread in a user namespace cannot return to the machine's network namespace, from which relays connect. So the
    # main thread never leaves the machine's namespace: another thread, which ends afterwards, joins the hosts'
    # namespaces.
    outcome: list[Network | BaseException] = []

    def build_here() -> None:
        try:
            network = _build_namespaces(spec, owned)
            outcome.append(network._replace(has_user_namespace=has_user_namespace, why_no_users=why_no_users))
        except BaseException as error:  # noqa: BLE001 - carried over to the calling thread, whatever it is
            outcome.append(error)

    builder = threading.Thread(target=build_here, name="fabric")
    builder.start()
    builder.join()
    result = outcome[0]
    if isinstance(result, BaseException):
        raise result
    return result


def port_name(index: int) -> str:
    """Return the name of the switch's end of the link to host number `index`."""
    return f"p{index}"


def burst_bytes(rate_bytes_s: int) -> int:
    """Return the size of the token bucket: the bytes that pass a limited link at once before its rate applies."""
    low = MIN_GIGABIT_BURST_BYTES if rate_bytes_s >= GIGABIT_BYTES_S else MIN_BURST_BYTES
    return min(max(int(rate_bytes_s * BURST_S), low), MAX_BURST_BYTES)


def bytes_s(rate_mbit_s: float) -> int:
    """Convert Mbit/s to bytes per second."""
    return max(int(rate_mbit_s * 125_000), 1)


def hardware_address(address: str) -> bytes:
    """Return the Ethernet address of the host with this IPv4 address: 02:00 (local), then the address."""
    return b"\x02\x00" + socket.inet_aton(address)


def is_network_admin() -> bool:
    """Whether this process may make network namespaces without a user namespace; root in a container often may not."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("CapEff:"):
                effective = int(line.split()[1], 16)
                return all(effective >> capability & 1 for capability in (CAP_NET_ADMIN, CAP_SYS_ADMIN))
    return False


def _make_owned(num_networks: int) -> tuple[int, int, list[int]]:
    first_id = mapped_users.first_id_of(os.getpid())
    users, networks = mapped_users.make_mapped_namespaces(first_id, num_networks=num_networks)
    return users, first_id, networks


def _build_namespaces(spec: NetworkSpec, owned: _Owned | None) -> Network:
    if owned is not None:
        switch, *networks = owned.networks
        hosts = dict(zip((host.name for host in spec.hosts), networks, strict=True))
    else:
        switch = _step("switch namespace", _new_network_namespace)
        hosts = {host.name: _step(f"namespace of {host.name}", _new_network_namespace) for host in spec.hosts}
    connect = _connect_taps if spec.is_switched_by_us else _connect_bridge
    ports = connect(spec, switch, hosts)
    return Network(
        host_descriptors=hosts,
        switch_descriptor=switch,
        has_user_namespace=False,
        users=-1 if owned is None else owned.users,
        first_id=0 if owned is None else owned.first_id,
        why_no_users="",
        listeners=_listen(spec, hosts),
        ports=ports,
        links=_open_links(spec, hosts),
    )


def _step(what: str, act: Any, *arguments: Any, **keywords: Any) -> Any:
    try:
        return act(*arguments, **keywords)
    except OSError as error:
        hint = namespaces.user_namespace_hint() if os.geteuid() != 0 or error.errno == 1 else ""
        raise FabricError(f"{what}: {error.strerror or error}{hint if hint not in str(error) else ''}") from error


def _new_network_namespace() -> int:
    namespaces.unshare(namespaces.CLONE_NEWNET)
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _connect_bridge(spec: NetworkSpec, switch: int, hosts: dict[str, int]) -> list[Any]:
    namespaces.setns(switch, namespaces.CLONE_NEWNET)
    with Netlink() as here:
        _step("bridge", here.add_bridge, BRIDGE)
        _step("bridge up", here.set_up, BRIDGE)
        for index, host in enumerate(spec.hosts):
            name = port_name(index)
            descriptor = hosts[host.name]
            _step(f"link of {host.name}", here.add_veth, name, peer_name="eth0", peer_namespace_fd=descriptor)
            _step(f"port of {host.name}", here.set_master, name, bridge=BRIDGE)
            _limit(here, name, host)
            _step(f"port of {host.name} up", here.set_up, name)
    for host in spec.hosts:
        namespaces.setns(hosts[host.name], namespaces.CLONE_NEWNET)
        _configure_host(spec, host)
    return []


def _connect_taps(spec: NetworkSpec, _switch: int, hosts: dict[str, int]) -> list[Any]:
    # imported late: saves 2 ms when a network without TAP devices starts
    from clary.control.engines.local.network.tap_switch import Port, open_tap

    may_lose = any(host.loss_percent for host in spec.hosts)
    ports = []
    for host in spec.hosts:
        namespaces.setns(hosts[host.name], namespaces.CLONE_NEWNET)
        descriptor = _step(
            f"TAP device of {host.name} (delay_ms and loss_percent need read and write access to /dev/net/tun)",
            open_tap,
            "eth0",
            with_segments=not may_lose,
        )
        _configure_host(spec, host)
        ports.append(
            Port(
                name=host.name,
                descriptor=descriptor,
                mac=hardware_address(host.address),
                rate_bytes_s=bytes_s(host.rate_mbit_s) if host.rate_mbit_s else None,
                delay_ns=round(host.delay_ms * 1e6),
                loss=host.loss_percent / 100,
            )
        )
    return ports


def _configure_host(spec: NetworkSpec, host: HostSpec) -> None:
    """Set up eth0 and lo of the host whose namespace this thread is in."""
    # SageMaker hosts speak IPv4 among themselves; without this eth0 would get a link-local IPv6 address, which
    # libraries that take an interface's first address could pick.
    for name in ("default", "eth0"):
        try:
            with open(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6", "w", encoding="ascii") as file:
                file.write("1")
        except OSError:
            pass  # a kernel without IPv6, or a read-only /proc/sys: the network works without this setting
    with Netlink() as here:
        _step(f"lo of {host.name}", here.set_up, "lo")
        _step(f"hardware address of {host.name}", here.set_hardware_address, "eth0", hardware_address(host.address))
        _step(f"address of {host.name}", here.add_address, "eth0", host.address, prefix_length=spec.prefix_length)
        _limit(here, "eth0", host)
        _step(f"eth0 of {host.name}", here.set_up, "eth0")


def _limit(here: Netlink, name: str, host: HostSpec) -> None:
    if host.rate_mbit_s is None:
        return
    rate = bytes_s(host.rate_mbit_s)
    burst = burst_bytes(rate)
    _step(
        f"rate of {host.name}",
        here.set_rate,
        name,
        rate_bytes_s=rate,
        burst_bytes=burst,
        queue_bytes=int(rate * QUEUE_S) + burst,
    )


def _listen(spec: NetworkSpec, hosts: dict[str, int]) -> list[tuple[socket.socket, RelaySpec]]:
    # imported late: saves 14 ms in processes that build no network
    from clary.control.engines.local.network.relay import make_listener

    listeners = []
    for host in spec.hosts:
        namespaces.setns(hosts[host.name], namespaces.CLONE_NEWNET)
        _add_relayed_addresses(spec)
        for relay in spec.relays:
            at = "" if relay.address == LOOPBACK else f" at {relay.address}"
            listener = _step(f"port {relay.port}{at} of {host.name}", make_listener, relay.port, address=relay.address)
            listeners.append((listener, relay))
    return listeners


def _add_relayed_addresses(spec: NetworkSpec) -> None:
    """Give the host, whose namespace this thread is in, the addresses that it reaches through relays.

    Uses routes of type `local`, not addresses of lo, so that programs that list a host's addresses do not see them.
    """
    addresses = {relay.address for relay in spec.relays if not relay.address.startswith("127.")}
    with Netlink() as here:
        for address in sorted(addresses):
            _step(f"route to {address}", here.add_local_route, "lo", address)


def _open_links(spec: NetworkSpec, hosts: dict[str, int]) -> list[socket.socket]:
    """Return sockets for the link watch; empty for one host, for lossy links, or if packet sockets are forbidden."""
    # imported late: saves 14 ms when a network without a link watch starts
    from clary.control.engines.local.network.link_watch import MAX_LOSS_PERCENT, open_link

    if len(hosts) == 1 or any(host.loss_percent > MAX_LOSS_PERCENT for host in spec.hosts):
        return []
    links: list[socket.socket] = []
    for host in spec.hosts:
        namespaces.setns(hosts[host.name], namespaces.CLONE_NEWNET)
        try:
            links.append(open_link())
        except OSError as error:  # no CAP_NET_RAW: the network works, but a cut link is noticed by programs only
            print(f"links are not watched: {error}", file=sys.stderr, flush=True)
            for link in links:
                link.close()
            return []
    return links
