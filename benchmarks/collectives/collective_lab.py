"""Gangs whose ranks lie on hosts of a laboratory network: ours and gloo's together, and MPI's beside them.

MPI starts its daemons through an agent that enters a host's network in place of ssh; hosts differ in name too, so that
MPI does not take them for one.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.collectives.collective_gang import MPIRUN, Gang
from clary.testing.lab_network import LabLink, LabNetwork

BRIDGE_LATENCY_US = 50  # of a link without delay: what our cost model assumes where nothing is said


@dataclass(frozen=True, kw_only=True)
class LabShape:
    """Hosts, ranks and the links between hosts."""

    num_hosts: int
    num_ranks: int
    rate_mbit_s: float
    delay_ms: float = 0.0

    @property
    def case(self) -> str:
        """The stable words of a result line."""
        rate = f"{self.rate_mbit_s / 1000:g}gbit" if self.rate_mbit_s >= 1000 else f"{self.rate_mbit_s:g}mbit"
        return f"link={rate},delay_ms={self.delay_ms:g}"

    @property
    def rate_bytes_s(self) -> float:
        """Of one direction of a link."""
        return self.rate_mbit_s * 125_000

    @property
    def our_link(self) -> str:
        """Latency and rate of the link for our groups, as a launcher that knows its network would give them."""
        return f"latency_us={BRIDGE_LATENCY_US + self.delay_ms * 1000:g},gbit={self.rate_mbit_s / 1000:g}"


@dataclass(frozen=True)
class Lab:
    """A network with gangs on it."""

    network: LabNetwork
    torch: Gang
    mpi: Gang | None

    def sent_bytes(self) -> list[int]:
        """Number of bytes that each host has sent so far."""
        return [self.network.counters(host).sent_bytes for host in self.network.hosts]


@contextlib.contextmanager
def running_lab(shape: LabShape, *, with_mpi: bool) -> Iterator[Lab]:
    """Build the network, start the gangs, and end all of it."""
    link = LabLink(rate_mbit_s=shape.rate_mbit_s, delay_ms=shape.delay_ms)
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(LabNetwork(shape.num_hosts, link))
        ranks_a_host = shape.num_ranks // shape.num_hosts
        entries = [network.entry(host) for host in network.hosts for _ in range(ranks_a_host)]
        environment = {"GLOO_SOCKET_IFNAME": "eth0", "CLARY_COLLECTIVE_LINK": shape.our_link}
        torch = stack.enter_context(Gang("torch", shape.num_ranks, entries=entries, environment=environment))
        mpi = None
        if with_mpi:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="clary-lab-")))
            mpi = stack.enter_context(
                Gang("mpi", shape.num_ranks, launcher=_mpi_launcher(network, folder, ranks_a_host))
            )
        yield Lab(network, torch, mpi)
    if counts := list(network.switch_counts.values()):
        late_us, dropped = (max(count[key] for count in counts) for key in ("worst_lateness_us", "dropped_frames"))
        print(f"clary_switch: latest frame {late_us / 1000:.1f} ms late, at most {dropped} dropped", file=sys.stderr)


def _mpi_launcher(network: LabNetwork, folder: Path, ranks_a_host: int) -> list[str]:
    agent = folder / "agent"
    cases = [
        f'{network.address(host)}) exec {shlex.join(_entry(network, host))} sh -c "$*" ;;' for host in network.hosts
    ]
    lines = ["#!/bin/sh", "# ADDRESS COMMAND...", "host=$1; shift", 'case "$host" in', *cases, "esac", "exit 1", ""]
    agent.write_text("\n".join(lines))
    agent.chmod(0o755)
    hosts = ",".join(f"{network.address(host)}:{ranks_a_host}" for host in network.hosts)
    first_options = ["--mca", "plm_rsh_agent", str(agent), "--mca", "btl_tcp_if_include", "eth0"]
    options = [*first_options, "--mca", "oob_tcp_if_include", "eth0", "--host", hosts]
    return [*_entry(network, network.hosts[0]), *MPIRUN, *options]


def _entry(network: LabNetwork, host: str) -> list[str]:
    """Enter the host's network with the host's name."""
    return [*network.entry(host), "unshare", "--uts", "sh", "-c", f'hostname {host}; exec "$@"', "sh"]
