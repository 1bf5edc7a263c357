"""Hosts on one machine: network namespaces joined by links with a rate, a delay and a loss, for tests and benchmarks.

    with LabNetwork(2, LabLink(rate_mbit_s=1000)) as network:
        subprocess.run([*network.entry("algo-1"), "ping", "-c1", network.address("algo-2")])
        network.counters("algo-1").sent_bytes

The namespaces are built as by the local engine (`network_building`), but without its anchor process: this process holds
them. They have no names, the machine's own namespace is unchanged, and the kernel removes all namespaces and links when
the block or this process ends. If no link has delay or loss, links are veth pairs on a bridge in a namespace of its
own, limited by token buckets in both directions; otherwise all links are TAP devices of `clary_switch` (native/tools),
a child of this process. Needs root.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from clary.base.processes import ProcessId, read_process_list
from clary.control.engines.local.network import namespaces, network_building
from clary.control.engines.local.network.netlink import Netlink
from clary.control.engines.local.network.network_spec import HostSpec, NetworkSpec
from clary.control.engines.local.network.tap_switch import Port

DEFAULT_SWITCH = Path(__file__).resolve().parents[3] / "build/native/clary_switch"
MAX_HOSTS = 250  # 10.77.0.1 and following
PREFIX_LENGTH = 24
ANSWER_TIMEOUT_S = 10.0
_RECEIVED_BYTES, _SENT_BYTES = 0, 8  # column indices of /proc/net/dev, counted after the name

Result = TypeVar("Result")


class LabError(Exception):
    """A laboratory network that could not be built, or that broke; the text names the part and the remedy."""


@dataclass(frozen=True, kw_only=True)
class LabLink:
    """The link between one host and the switch; between two hosts the larger delay and loss apply.

    Args:
        rate_mbit_s: rate in each direction; None for no limit.
        delay_ms: one way.
        loss_percent: lost frames in percent; a frame then carries one packet, as on a wire.
    """

    rate_mbit_s: float | None = None
    delay_ms: float = 0.0
    loss_percent: float = 0.0


@dataclass(frozen=True)
class LinkCounters:
    """Bytes that have passed a host's interface since it was made, with Ethernet, IP and TCP headers."""

    sent_bytes: int
    received_bytes: int


class LabNetwork:
    """A running network; a context manager. Hosts are `algo-1` and following, in order.

    Args:
        num_hosts: number of hosts.
        link: link of every host, or one link per host.
        seed: seed of the loss; the same seed drops the same frames if they arrive in the same order.
        switch_program: `clary_switch`; by default CLARY_SWITCH_PROGRAM or build/native/clary_switch.
    Raises: ValueError for other numbers of hosts or links; on entry LabError naming the step, and then no namespace,
        link or process remains.
    """

    def __init__(
        self, num_hosts: int, link: LabLink | list[LabLink], *, seed: int = 1, switch_program: Path | None = None
    ) -> None:
        links = link if isinstance(link, list) else [link] * num_hosts
        if not 1 <= num_hosts <= MAX_HOSTS or len(links) != num_hosts:
            raise ValueError(
                f"expected 1 to {MAX_HOSTS} hosts with one link each, got {num_hosts} hosts, {len(links)} links"
            )
        hosts = tuple(
            HostSpec(f"algo-{i + 1}", f"10.77.0.{i + 1}", link.rate_mbit_s, link.delay_ms, link.loss_percent)
            for i, link in enumerate(links)
        )
        self._spec = NetworkSpec("", PREFIX_LENGTH, hosts, ())
        self._seed = seed
        self._switch_program = switch_program or Path(os.environ.get("CLARY_SWITCH_PROGRAM", DEFAULT_SWITCH))
        self._network: network_building.Network | None = None
        self._switch: subprocess.Popen[str] | None = None
        self.switch_counts: dict[str, dict[str, int]] = {}  # host -> counts, set after the block; empty with a bridge

    def __enter__(self) -> Self:
        if os.geteuid() != 0:
            raise LabError("a laboratory network needs root: it makes network namespaces and links")
        if self._spec.is_switched_by_us and not self._switch_program.is_file():
            raise LabError(
                f"links with delay or loss need {self._switch_program}: "
                "build it with cmake, target clary_switch, or name another in CLARY_SWITCH_PROGRAM"
            )
        try:
            self._network = network_building.build(self._spec)
            for watch in self._network.links:  # sockets of the engine's link watch, which would send extra frames
                watch.close()
            if self._network.ports:
                self._switch = self._start_switch(self._network.ports)
        except (network_building.FabricError, OSError) as error:
            self._close()
            raise LabError(f"a laboratory network of {len(self._spec.hosts)} hosts: {error}") from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close()

    @property
    def hosts(self) -> list[str]:
        """Names of the hosts, in order."""
        return [host.name for host in self._spec.hosts]

    def address(self, host: str) -> str:
        """Return the IPv4 address of a host's `eth0`."""
        return self._spec.hosts[self._index(host)].address

    def entry(self, host: str) -> list[str]:
        """Return the command prefix that runs a command in the host's network, as a child of the caller."""
        return ["nsenter", f"--net=/proc/{os.getpid()}/fd/{self._namespace(host)}", "--"]

    def counters(self, host: str) -> LinkCounters:
        """Return the byte counters of the host's `eth0`."""

        def read() -> LinkCounters:
            for line in Path("/proc/thread-self/net/dev").read_text(encoding="ascii").splitlines():
                name, _, columns = line.partition(":")
                if name.strip() == "eth0":
                    values = [int(column) for column in columns.split()]
                    return LinkCounters(values[_SENT_BYTES], values[_RECEIVED_BYTES])
            raise LabError(f"{host} has no eth0")

        return _in_namespace(self._namespace(host), read)

    def set_link(self, host: str, *, up: bool) -> None:
        """Cut a host's link (`up=False`) or connect it again; its interface keeps address and carrier.

        Raises: LabError if the switch did not do it within ANSWER_TIMEOUT_S.
        """
        index = self._index(host)
        assert self._network is not None, "used inside the block only"
        if self._switch is not None:
            self._tell_switch(f"{'up' if up else 'down'} {host}")
            return

        def change() -> None:
            with Netlink() as switch:
                bridge = network_building.BRIDGE if up else None
                switch.set_master(network_building.port_name(index), bridge=bridge)

        _in_namespace(self._network.switch_descriptor, change)

    def _index(self, host: str) -> int:
        try:
            return self.hosts.index(host)
        except ValueError:
            raise ValueError(f"no host {host!r}; there are {', '.join(self.hosts)}") from None

    def _namespace(self, host: str) -> int:
        self._index(host)
        assert self._network is not None, "used inside the block only"
        return self._network.host_descriptors[host]

    def _start_switch(self, ports: list[Port]) -> subprocess.Popen[str]:
        descriptors = [port.descriptor for port in ports]
        try:
            return subprocess.Popen(
                [str(self._switch_program), str(self._seed), *map(_switch_argument, ports)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                pass_fds=descriptors,
            )
        finally:
            for descriptor in descriptors:  # from here on the switch holds them
                os.close(descriptor)

    def _tell_switch(self, order: str) -> None:
        assert self._switch is not None
        assert self._switch.stdin is not None
        assert self._switch.stdout is not None
        try:
            self._switch.stdin.write(f"{order}\n")
            self._switch.stdin.flush()
        except BrokenPipeError:
            raise LabError(f"{self._switch_program} has ended with code {self._switch.poll()}") from None
        ready, _, _ = select.select([self._switch.stdout], [], [], ANSWER_TIMEOUT_S)
        if not ready or self._switch.stdout.readline().strip() != order:
            raise LabError(f"{self._switch_program} did not do {order!r} within {ANSWER_TIMEOUT_S:g} s")

    def _close(self) -> None:
        """End the processes in the hosts, then the switch, then release the namespaces."""
        network, self._network = self._network, None
        switch, self._switch = self._switch, None
        held = [] if network is None else [*network.host_descriptors.values(), network.switch_descriptor]
        try:
            _end_processes_in(held)
            if switch is not None:
                self._end_switch(switch)
        finally:
            for descriptor in held:
                os.close(descriptor)

    def _end_switch(self, switch: subprocess.Popen[str]) -> None:
        try:
            said, _ = switch.communicate(timeout=ANSWER_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            switch.kill()
            switch.communicate()
            raise LabError(f"{self._switch_program} did not end within {ANSWER_TIMEOUT_S:g} s") from None
        if switch.returncode != 0:
            raise LabError(f"{self._switch_program} ended with code {switch.returncode}: its messages are on stderr")
        self.switch_counts = json.loads(said)


def _switch_argument(port: Port) -> str:
    """Return the description of a link for `clary_switch`."""
    rate = round(port.rate_bytes_s or 0)
    return f"{port.name},{port.descriptor},{port.mac.hex(':')},{rate},{port.delay_ns},{port.loss:g}"


def _in_namespace(descriptor: int, act: Callable[[], Result]) -> Result:
    """Call `act` in a thread inside a network namespace; the calling thread keeps its own namespace."""
    outcome: list[Result] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            namespaces.setns(descriptor, namespaces.CLONE_NEWNET)
            outcome.append(act())
        except BaseException as error:  # noqa: BLE001 - carried over to the calling thread, whatever it is
            failure.append(error)

    thread = threading.Thread(target=run, name="lab-network")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]


def _end_processes_in(descriptors: list[int]) -> None:
    """Kill every process in one of these network namespaces."""
    ours = {os.fstat(descriptor).st_ino for descriptor in descriptors}
    for pid in read_process_list():
        with contextlib.suppress(OSError):
            process = ProcessId.of(pid)
            if process is not None and os.stat(f"/proc/{pid}/ns/net").st_ino in ours:
                process.kill(timeout_s=ANSWER_TIMEOUT_S)
