"""The anchor of one job's network: a process that makes the hosts' network namespaces and holds them while it lives.

Run: `python -m clary.control.engines.local.fabric FOLDER/network.json`; `--probe` instead of a file makes a network
with one host, says on stdout as JSON what came of it, and leaves. Standard library only.

    host algo-1              switch (own namespace)            host algo-2
    eth0 10.77.0.1 --veth--> p0 -- br0 -- p1 <--veth-- eth0 10.77.0.2        links without delay and loss
    eth0 10.77.0.1 --TAP---> tap_switch, a child process <--TAP-- eth0 10.77.0.2        links with delay or loss
    127.0.0.1:4570 --relay--> the service, from the anchor's own namespace

No host has a route to anything but its job's hosts. Nothing is made in the machine's namespace and nothing in
/run/netns: others join through /proc/ANCHOR/fd/N, so when the anchor ends, by itself or killed, all of it vanishes.
Without root the anchor is root of a user namespace of its own. It outlives the service, and ends when the file
`released` appears in its folder or the folder vanishes.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import sys
import threading
import time
from typing import Any, NamedTuple

from clary.contract.processes import ProcessId
from clary.control.engines.local import namespaces
from clary.control.engines.local.netlink import Netlink

SPEC_FILE = "network.json"
READY_FILE = "network-ready.json"
LOCK_FILE = "anchor.lock"
RELEASED_FILE = "released"
PARTITIONS_FILE = "partitions.json"

EXIT_FAILED = 1  # the ready file says why
EXIT_HELD = 3  # another anchor holds this folder

CAP_NET_ADMIN, CAP_SYS_ADMIN = 12, 21  # linux/capability.h
BRIDGE = "br0"
RELEASE_POLL_S = 2.0
MAX_SWITCH_RESTARTS = 5

# Token bucket: measured with tbf on veth, a bucket of 2 ms reaches 95 % and more of the rate from 100 Mbit/s to
# 10 Gbit/s, never below one 32 KiB write, and not below 256 KiB from 1 Gbit/s on.
BURST_S = 0.002
MIN_BURST_BYTES = 32 * 1024
GIGABIT_BYTES_S = 125_000_000
MIN_GIGABIT_BURST_BYTES = 256 * 1024
MAX_BURST_BYTES = 1024 * 1024
QUEUE_S = 0.05  # what a sender may have waiting at its token bucket


class FabricError(Exception):
    """A network that could not be made: which step, and what the kernel said."""


class HostSpec(NamedTuple):
    """One host of the network."""

    name: str
    address: str
    rate_mbit_s: float | None
    delay_ms: float
    loss_percent: float


class RelaySpec(NamedTuple):
    """A port of every host's 127.0.0.1 that leads to an address of the machine."""

    port: int
    target_address: str
    target_port: int


class NetworkSpec(NamedTuple):
    """The whole network of one job."""

    folder: str
    prefix_length: int
    hosts: tuple[HostSpec, ...]
    relays: tuple[RelaySpec, ...]

    @property
    def is_switched_by_us(self) -> bool:
        """Whether links ask for what a bridge cannot do."""
        return any(host.delay_ms or host.loss_percent for host in self.hosts)


class Network(NamedTuple):
    """What was made."""

    host_descriptors: dict[str, int]
    switch_descriptor: int
    has_user_namespace: bool
    listeners: list[tuple[socket.socket, RelaySpec]]
    ports: list[Any]  # tap_switch.Port; empty with a bridge
    links: list[socket.socket]  # of the link watch, one per host; empty where links are not watched


def read_spec(path: str) -> NetworkSpec:
    """Read what `write_spec` wrote."""
    with open(path, encoding="utf-8") as file:
        data = json.load(file)
    return NetworkSpec(
        folder=data["folder"],
        prefix_length=data["prefix_length"],
        hosts=tuple(HostSpec(**host) for host in data["hosts"]),
        relays=tuple(RelaySpec(**relay) for relay in data["relays"]),
    )


def write_spec(spec: NetworkSpec) -> str:
    """Write the spec into its folder and return the file's path."""
    path = os.path.join(spec.folder, SPEC_FILE)
    document = {
        "folder": spec.folder,
        "prefix_length": spec.prefix_length,
        "hosts": [host._asdict() for host in spec.hosts],
        "relays": [relay._asdict() for relay in spec.relays],
    }
    write_json(path, document)
    return path


def write_json(path: str, document: Any) -> None:
    """Replace a file by a JSON document: a reader sees the old or the new one, also after a crash."""
    partial = f"{path}.{os.getpid()}-{threading.get_native_id()}.partial"
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def build(spec: NetworkSpec) -> Network:
    """Make all namespaces, links and listeners; the calling thread stays in its own network namespace.

    Raises: FabricError naming the step; namespaces made so far go with the process.
    """
    has_user_namespace = not _is_network_admin()
    if has_user_namespace:
        _step("user namespace", namespaces.enter_own_user_namespace)
    # In a user namespace there is no way back into the machine's network namespace, from where relays connect. The
    # main thread therefore never leaves it: network namespaces belong to threads, and this one ends afterwards.
    outcome: list[Network | BaseException] = []

    def build_here() -> None:
        try:
            outcome.append(_build_namespaces(spec, has_user_namespace=has_user_namespace))
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
    """Return the name of the switch's end of host number `index`."""
    return f"p{index}"


def hardware_address(address: str) -> bytes:
    """Return the Ethernet address of the host with this IPv4 address: 02:00 (locally administered) and its bytes."""
    return b"\x02\x00" + socket.inet_aton(address)


def main(arguments: list[str]) -> int:
    """Make the network of the spec file named by the only argument, and hold it."""
    if len(arguments) != 1:
        print("usage: python -m clary.control.engines.local.fabric FILE | --probe", file=sys.stderr)
        return 2
    if arguments[0] == "--probe":
        return _probe()
    spec = read_spec(arguments[0])
    lock = open(os.path.join(spec.folder, LOCK_FILE), "w", encoding="ascii")  # noqa: SIM115 - held until the end
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # belongs to this process alone, not to its children
    except BlockingIOError:
        return EXIT_HELD
    own = ProcessId.of(os.getpid())
    assert own is not None, "a running process has an entry in /proc"
    identity = {"pid": own.pid, "started": own.started}
    ready_path = os.path.join(spec.folder, READY_FILE)
    try:
        network = build(spec)
        switch = _SwitchChild(spec, network) if network.ports else None
    except FabricError as error:
        write_json(ready_path, identity | {"error": str(error)})
        return EXIT_FAILED
    ready = {
        "error": None,
        "namespaces": network.host_descriptors,
        "switch": network.switch_descriptor,
        "has_user_namespace": network.has_user_namespace,
        "is_switched_by_us": spec.is_switched_by_us,
    }
    write_json(ready_path, identity | ready)
    os.chdir("/")
    _hold(spec, network, switch)
    return 0


def _is_network_admin() -> bool:
    """Whether this process may make network namespaces as it is; root of a container often may not."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("CapEff:"):
                effective = int(line.split()[1], 16)
                return all(effective >> capability & 1 for capability in (CAP_NET_ADMIN, CAP_SYS_ADMIN))
    return False


def _build_namespaces(spec: NetworkSpec, *, has_user_namespace: bool) -> Network:
    switch = _step("switch namespace", _new_network_namespace)
    hosts = {host.name: _step(f"namespace of {host.name}", _new_network_namespace) for host in spec.hosts}
    connect = _connect_taps if spec.is_switched_by_us else _connect_bridge
    ports = connect(spec, switch, hosts)
    return Network(hosts, switch, has_user_namespace, _listen(spec, hosts), ports, _open_links(spec, hosts))


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
    from clary.control.engines.local.tap_switch import Port, open_tap

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
                rate_bytes_s=_bytes_s(host.rate_mbit_s) if host.rate_mbit_s else None,
                delay_ns=round(host.delay_ms * 1e6),
                loss=host.loss_percent / 100,
            )
        )
    return ports


def _configure_host(spec: NetworkSpec, host: HostSpec) -> None:
    """Give eth0 and lo of the host, whose namespace this thread is in, what they need."""
    # SageMaker hosts speak IPv4 among themselves; without this eth0 would get a link-local IPv6 address, which
    # libraries that take an interface's first address could pick.
    for name in ("default", "eth0"):
        try:
            with open(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6", "w", encoding="ascii") as file:
                file.write("1")
        except OSError:
            pass  # a kernel without IPv6, or /proc/sys read-only: nothing depends on it
    with Netlink() as here:
        _step(f"lo of {host.name}", here.set_up, "lo")
        _step(f"hardware address of {host.name}", here.set_hardware_address, "eth0", hardware_address(host.address))
        _step(f"address of {host.name}", here.add_address, "eth0", host.address, prefix_length=spec.prefix_length)
        _limit(here, "eth0", host)
        _step(f"eth0 of {host.name}", here.set_up, "eth0")


def _limit(here: Netlink, name: str, host: HostSpec) -> None:
    if host.rate_mbit_s is None:
        return
    rate = _bytes_s(host.rate_mbit_s)
    low = MIN_GIGABIT_BURST_BYTES if rate >= GIGABIT_BYTES_S else MIN_BURST_BYTES
    burst = min(max(int(rate * BURST_S), low), MAX_BURST_BYTES)
    _step(
        f"rate of {host.name}",
        here.set_rate,
        name,
        rate_bytes_s=rate,
        burst_bytes=burst,
        queue_bytes=int(rate * QUEUE_S) + burst,
    )


def _bytes_s(rate_mbit_s: float) -> int:
    return max(int(rate_mbit_s * 125_000), 1)


def _listen(spec: NetworkSpec, hosts: dict[str, int]) -> list[tuple[socket.socket, RelaySpec]]:
    from clary.control.engines.local.relay import make_listener

    listeners = []
    for host in spec.hosts:
        namespaces.setns(hosts[host.name], namespaces.CLONE_NEWNET)
        for relay in spec.relays:
            listener = _step(f"port {relay.port} of {host.name}", make_listener, relay.port)
            listeners.append((listener, relay))
    return listeners


def _open_links(spec: NetworkSpec, hosts: dict[str, int]) -> list[socket.socket]:
    """Return sockets for the link watch; none for one host, for links that lose much, or where they are forbidden."""
    from clary.control.engines.local.link_watch import MAX_LOSS_PERCENT, open_link

    if len(hosts) == 1 or any(host.loss_percent > MAX_LOSS_PERCENT for host in spec.hosts):
        return []
    links: list[socket.socket] = []
    for host in spec.hosts:
        namespaces.setns(hosts[host.name], namespaces.CLONE_NEWNET)
        try:
            links.append(open_link())
        except OSError as error:  # no CAP_NET_RAW: the network works, and a cut link is noticed by programs alone
            print(f"links are not watched: {error}", file=sys.stderr, flush=True)
            for link in links:
                link.close()
            return []
    return links


class _SwitchChild:
    """The process that runs the TAP switch; started again if it dies, for the anchor keeps the TAP devices open."""

    def __init__(self, spec: NetworkSpec, network: Network) -> None:
        self._spec = spec
        self._network = network
        self._num_starts = 0
        self.pid = 0
        self._start()

    def restart_if_dead(self) -> None:
        """Start the switch again if it has died; gives up, and ends the anchor, after too many deaths."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0:
            return
        os.close(self._stop_write)
        if self._num_starts > MAX_SWITCH_RESTARTS:
            raise FabricError(f"the TAP switch died {self._num_starts} times, last with wait status {status}")
        print(f"the TAP switch died with wait status {status}; starting it again", file=sys.stderr, flush=True)
        self._start()

    def _start(self) -> None:
        from clary.control.engines.local.tap_switch import TapSwitch

        # The pipe ends when the anchor does, however it ends; the child then leaves and lets go of the devices.
        stop_read, self._stop_write = os.pipe()
        self._num_starts += 1
        pid = os.fork()
        if pid:
            os.close(stop_read)
            self.pid = pid
            return
        code = 1
        try:
            keep = {0, 1, 2, stop_read, *(port.descriptor for port in self._network.ports)}
            for descriptor in _open_descriptors() - keep:
                os.close(descriptor)
            partitions = os.path.join(self._spec.folder, PARTITIONS_FILE)
            TapSwitch(self._network.ports, stop_descriptor=stop_read, partitions_path=partitions).run()
            code = 0
        finally:
            if code:
                import traceback

                traceback.print_exc()
            os._exit(code)


def _open_descriptors() -> set[int]:
    """Return this process's descriptors; the one that listed them is closed by then and left out."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            os.fstat(int(name))
        except OSError:
            continue
        found.add(int(name))
    return found


def _hold(spec: NetworkSpec, network: Network, switch: _SwitchChild | None) -> None:
    """Serve the relays until the attempt is released."""
    import asyncio

    _raise_descriptor_limit()
    asyncio.run(_serve(spec, network, switch))


async def _serve(spec: NetworkSpec, network: Network, switch: _SwitchChild | None) -> None:
    import asyncio

    from clary.control.engines.local import relay as relays

    tasks = [
        asyncio.create_task(relays.serve(listener, relays.RelayTarget(relay.target_address, relay.target_port)))
        for listener, relay in network.listeners
    ]
    if network.links:
        tasks.append(asyncio.create_task(_link_watch(spec, network).run()))
    try:
        while not _is_over(spec.folder):
            if switch is not None:
                switch.restart_if_dead()
            await asyncio.sleep(RELEASE_POLL_S)
            for task in tasks:
                if task.done():
                    task.result()  # a relay or watch that cannot go on: the traceback goes to anchor.log
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _link_watch(spec: NetworkSpec, network: Network) -> Any:
    from clary.control.engines.local.link_watch import CUT_OFF_FILE, LinkWatch

    return LinkWatch(
        [host.name for host in spec.hosts],
        network.links,
        [hardware_address(host.address) for host in spec.hosts],
        path=os.path.join(spec.folder, CUT_OFF_FILE),
        max_delay_s=max(host.delay_ms for host in spec.hosts) / 1000,
    )


def _is_over(folder: str) -> bool:
    return not os.path.isdir(folder) or os.path.exists(os.path.join(folder, RELEASED_FILE))


def _raise_descriptor_limit() -> None:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _probe() -> int:
    """Make a network with one host and say what came of it."""
    started = time.monotonic()
    spec = NetworkSpec("", 24, (HostSpec("probe", "10.77.0.1", 1000.0, 0.0, 0.0),), ())
    answer: dict[str, Any] = {"error": None, "has_user_namespace": False}
    try:
        answer["has_user_namespace"] = build(spec).has_user_namespace
    except FabricError as error:
        answer["error"] = str(error)
    answer["seconds"] = round(time.monotonic() - started, 3)
    print(json.dumps(answer))
    return EXIT_FAILED if answer["error"] else 0


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at a service in the foreground is no order to the anchors
    sys.exit(main(sys.argv[1:]))
