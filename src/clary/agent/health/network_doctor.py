"""Start of one host's network program, and its readings.

Where: `supervisor.host_health` runs it during the host's preparation, if the host has a network of its own and peers.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TypeVar

import clary
from clary.agent.health.network_program import NETWORK_GONE_EXIT_CODE
from clary.agent.health.readings import NetworkOrder, NetworkReading, Peer, PortReading
from clary.base.errors import AgentError, ContractError
from clary.base.plain import from_plain, to_plain
from clary.base.readiness import readable
from clary.contract.health import HealthAction
from clary.contract.launch_plan import HostPlan, LaunchPlan

# timeout after contact with the peers: several times the duration for the slowest link on a busy machine
_MEASURING_S = 25.0
_PAUSE_S = 1.0  # delays our own imports, so that a program that starts meanwhile has the processors
_END_S = 2.0
_CHUNK_BYTES = 1 << 16

_Reading = TypeVar("_Reading", PortReading, NetworkReading)


def network_order(plan: LaunchPlan, host: HostPlan) -> NetworkOrder:
    """Return the order for a host's network program. Pure.

    With `HealthAction.REPLACE` there is no pause, because the job's program starts only after all readings.
    """
    return NetworkOrder(
        host=host.name,
        names=tuple(other.name for other in plan.hosts),
        address=host.address,
        interface=plan.network.interface,
        peers=tuple(_peer(host, other) for other in plan.hosts if other is not host),
        ports=(plan.network.master_port, plan.network.jax_port),
        hosts_file=str(Path(plan.work_folder) / host.name / "health-hosts"),
        network_namespace=plan.network.namespace_paths.get(host.name),
        user_namespace=plan.network.user_namespace_path,
        pause_s=0.0 if plan.health_action is HealthAction.REPLACE else _PAUSE_S,
    )


def _peer(host: HostPlan, other: HostPlan) -> Peer:
    """Describe a peer with the round trip, loss and rate planned for both hosts' links."""
    here, there = host.resources.link, other.resources.link
    rates = [link.rate_mbit_s for link in (here, there) if link.rate_mbit_s is not None]
    return Peer(
        name=other.name,
        address=other.address,
        # The switch applies the larger of both delays (`engines.local.network.tap_switch`).
        round_trip_ms=2 * max(here.delay_ms, there.delay_ms),
        loss_percent=max(here.loss_percent, there.loss_percent),
        rate_mbit_s=min(rates, default=None),
    )


class NetworkDoctor:
    """One run of a host's network program.

    The thread that creates a `NetworkDoctor` must also close it; the network program is killed when that thread ends.
    """

    def __init__(self, order: NetworkOrder) -> None:
        self._order = order
        self._data = b""  # bytes of an incomplete line
        self._ports: PortReading | None = None
        # -S: without site-packages, where users may have installed packages
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-B", "-m", "clary.agent.health.network_program", str(os.getpid())],
            env={"PYTHONPATH": str(Path(clary.__file__).parent.parent)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        with contextlib.suppress(OSError), self._process.stdin as file:  # if it has ended, the next reading says so
            file.write(json.dumps(to_plain(order)).encode())

    def port_reading(self) -> PortReading:
        """Wait for the first reading; afterwards the network program no longer uses the job's ports.

        Raises: AgentError if it does not arrive in time, or the program has ended.
        """
        if self._ports is None:
            self._ports = self._read(PortReading)
        return self._ports

    def reading(self) -> NetworkReading:
        """Wait for the reading of the network and its peers; afterwards the program still answers peers.

        Raises: AgentError if it does not arrive in time, or the program has ended.
        """
        self.port_reading()
        return self._read(NetworkReading)

    def wait(self, timeout_s: float) -> None:
        """Give the program time to answer its peers, then end it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        self.close()

    def end(self) -> None:
        """Kill the program, from any thread; threads that wait for its output get an error."""
        if self._process.poll() is None:
            self._process.kill()

    def close(self) -> None:
        """End the program and free its descriptors; a second call does nothing."""
        self.end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        if self._process.stdout is not None and not self._process.stdout.closed:
            self._process.stdout.close()

    def _read(self, kind: type[_Reading]) -> _Reading:
        try:
            return from_plain(kind, json.loads(self._line(self._order.meet_s + self._order.pause_s + _MEASURING_S)))
        except (OSError, ValueError, ContractError, subprocess.TimeoutExpired) as error:
            raise AgentError(f"the network of {self._order.host} was not checked: {error}") from error

    def _line(self, limit_s: float) -> bytes:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        end_s = time.monotonic() + limit_s
        while b"\n" not in self._data:
            if not readable([descriptor], end_s - time.monotonic()):
                raise TimeoutError(f"nothing came from its network program within {limit_s:g} s")
            more = os.read(descriptor, _CHUNK_BYTES)
            if not more:
                code = self._process.wait(_END_S)
                if code == NETWORK_GONE_EXIT_CODE:
                    raise ValueError("its network is gone: the holder of the network has ended")
                raise ValueError(f"its network program ended with code {code}; see the agent's log")
            self._data += more
        line, _, self._data = self._data.partition(b"\n")
        return line
