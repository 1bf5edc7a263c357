"""Start the network program of one host and take its reading.

Where: `supervisor.host_health` runs it beside the preparation, where the host has a network of its own and peers.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path

import clary
from clary.agent.health.readings import NetworkOrder, NetworkReading, Peer
from clary.contract.errors import AgentError, ContractError
from clary.contract.launch_plan import HostPlan, LaunchPlan
from clary.contract.plain import from_plain, to_plain

_MEASURING_S = 25.0  # once the peers are met: several times what the slowest link takes, on a machine that is busy
_END_S = 2.0
_CHUNK_BYTES = 1 << 16


def network_order(plan: LaunchPlan, host: HostPlan) -> NetworkOrder:
    """Return what a host's network program is to do. Pure."""
    return NetworkOrder(
        host=host.name,
        names=tuple(other.name for other in plan.hosts),
        address=host.address,
        interface=plan.network.interface,
        peers=tuple(_peer(host, other) for other in plan.hosts if other is not host),
        ports=(plan.network.master_port, plan.network.master_port + 1),
        hosts_file=str(Path(plan.work_folder) / host.name / "health-hosts"),
        network_namespace=plan.network.namespace_paths.get(host.name),
        user_namespace=plan.network.user_namespace_path,
    )


def _peer(host: HostPlan, other: HostPlan) -> Peer:
    """Describe a peer with what the shapes of both links make of the way to it."""
    here, there = host.resources.link, other.resources.link
    rates = [link.rate_mbit_s for link in (here, there) if link.rate_mbit_s is not None]
    return Peer(
        name=other.name,
        address=other.address,
        # The switch takes the larger of the two (`engines.local.tap_switch`).
        round_trip_ms=2 * max(here.delay_ms, there.delay_ms),
        loss_percent=max(here.loss_percent, there.loss_percent),
        rate_mbit_s=min(rates, default=None),
    )


class NetworkDoctor:
    """One run of a host's network program, which dies with the thread that makes this; that thread closes it too."""

    def __init__(self, order: NetworkOrder) -> None:
        self._order = order
        # Of the agent's interpreter, and without what users have installed into it.
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-m", "clary.agent.health.network_program", str(os.getpid())],
            env={"PYTHONPATH": str(Path(clary.__file__).parent.parent)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def reading(self) -> NetworkReading:
        """Wait for the reading; the program goes on answering peers after it.

        Raises: AgentError if there is none in time.
        """
        assert self._process.stdin is not None
        limit_s = self._order.meet_s + _MEASURING_S
        try:
            with self._process.stdin as file:
                file.write(json.dumps(to_plain(self._order)).encode())
            line = self._line(limit_s)
            return from_plain(NetworkReading, json.loads(line))
        except (OSError, ValueError, ContractError, subprocess.TimeoutExpired) as error:
            raise AgentError(f"the network of {self._order.host} was not checked: {error}") from error

    def wait(self, timeout_s: float) -> None:
        """Give the program time to answer its peers, then end it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        self.close()

    def end(self) -> None:
        """Kill the program, from any thread: whoever waits for its reading gets an error."""
        if self._process.poll() is None:
            self._process.kill()

    def close(self) -> None:
        """End the program and free what it held; harmless when repeated."""
        self.end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        if self._process.stdout is not None and not self._process.stdout.closed:
            self._process.stdout.close()

    def _line(self, limit_s: float) -> bytes:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        end_s = time.monotonic() + limit_s
        data = b""
        while not data.endswith(b"\n"):
            ready, _, _ = select.select([descriptor], [], [], max(0.0, end_s - time.monotonic()))
            if not ready:
                raise TimeoutError(f"nothing came from its network program within {limit_s:g} s")
            more = os.read(descriptor, _CHUNK_BYTES)
            if not more:
                raise ValueError(
                    f"its network program ended with code {self._process.wait(_END_S)}; see the agent's log"
                )
            data += more
        return data
