"""Decision whether the processes of a host have connected to the processes of other hosts. Pure.

Where: `rendezvous_watch` passes it the connections of the host's network. Stores and coordinators of all launchers
listen at MASTER_PORT of one host, jax's coordinator at the next port; users may name a further port by
CLARY_COLLECTIVE_PORT or `ddp_port`. A process has arrived once it is connected to one of these ports:

- a host with one process has arrived once the process is connected to such a port on any host, also its own: torch's
  rank 0 connects to its own store; torchrun, mpirun and users' commands count as one process, whatever they start;
- on a host with several processes each process must hold a connection of its own;
- if the only process of a host listens at such a port and connects to none, as a coordinator without a client does, it
  has arrived once every other host has connected to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clary.agent.rendezvous.connection_table import Connection
from clary.contract.launch_plan import HostPlan, Isolation, LaunchPlan
from clary.contract.settings.distribution import read_distribution

_LOOPBACK = ("127.", "::1")
_STORE_PORT_VARIABLE = "CLARY_COLLECTIVE_PORT"  # as in `train.collective.settings`
_STORE_PORT_PARAMETER = "ddp_port"  # of smdistributed.modelparallel
_LAST_PORT = 65535


@dataclass(frozen=True, kw_only=True)
class MeetingPlace:
    """Ports and addresses to which a host's processes are expected to connect."""

    ports: frozenset[int]
    addresses: frozenset[str]  # of all hosts; loopback addresses count too
    others: frozenset[str]  # addresses of the other hosts that take part
    num_processes: int  # processes that Clary starts on this host
    may_have_old: bool = True  # whether another program may have left connections in the host's network


def meeting_place(plan: LaunchPlan, host: HostPlan, *, num_processes: int) -> MeetingPlace | None:
    """Return the place; None for a host without peers, without a network namespace, or outside the distribution.

    Args:
        plan: of the attempt.
        host: a host of the plan.
        num_processes: processes that Clary starts on this host.
    """
    if plan.isolation is not Isolation.NAMESPACES or host.name not in plan.network.namespace_paths:
        return None
    members = list(plan.hosts)
    ports = {
        plan.network.master_port,
        plan.network.jax_port,
        _port(plan.user_environment.get(_STORE_PORT_VARIABLE)),
    }
    if plan.command is None:  # if there is a command, hyperparameters select no distribution
        distribution = read_distribution(plan.hyperparameters)
        if not distribution.includes(host.instance_group):
            return None
        groups = distribution.instance_groups or (host.instance_group,)
        members = [other for other in plan.hosts if other.instance_group in groups]
        ports.add(_port((distribution.mp_parameters or {}).get(_STORE_PORT_PARAMETER)))
    others = frozenset(other.address for other in members if other is not host)
    if not others and num_processes == 1:
        return None
    return MeetingPlace(
        ports=frozenset(port for port in ports if port),
        addresses=frozenset(other.address for other in plan.hosts),
        others=others,
        num_processes=num_processes,
        may_have_old=plan.shares_hosts,
    )


class Meeting:
    """Connections of one program observed so far."""

    def __init__(self, place: MeetingPlace) -> None:
        self._place = place
        # Connections left by an earlier program of the host; empty if there was no earlier program.
        self._old: frozenset[tuple[object, object]] | None = None if place.may_have_old else frozenset()
        self._heard: set[str] = set()  # addresses that have connected to this host
        self._holders: dict[int, int] = {}  # inode of a connection to the master port -> process

    def needs_holders(self, connections: Sequence[Connection]) -> bool:
        """Whether `is_complete` needs the holders of the sockets, because processes must be distinguished."""
        return self._place.num_processes > 1 and any(
            item.is_established and item.inode not in self._holders for item in self._to_master(connections)
        )

    def is_complete(self, connections: Sequence[Connection], holders: Mapping[int, int]) -> bool:
        """Add the connections of one scan; return whether all processes of this host have arrived.

        Args:
            connections: of the host's network, at the ports of the meeting place; the first scan must take place before
                the program's first connection ends.
            holders: inode -> process that holds the socket.
        """
        if self._old is None:
            self._old = frozenset((item.local, item.remote) for item in connections if not item.is_established)
        fresh = [item for item in connections if (item.local, item.remote) not in self._old]
        outgoing = self._to_master(fresh)
        if self._place.num_processes == 1:
            self._heard |= {item.remote[0] for item in fresh if item.local[1] in self._place.ports}
            return bool(outgoing) or (bool(self._place.others) and self._place.others <= self._heard)
        for item in outgoing:
            if item.is_established and item.inode:
                # A connection whose process is unknown counts as one process.
                self._holders.setdefault(item.inode, holders.get(item.inode, -item.inode))
        return len(set(self._holders.values())) >= self._place.num_processes

    def _to_master(self, connections: Sequence[Connection]) -> list[Connection]:
        place = self._place
        return [
            item
            for item in connections
            if item.remote[1] in place.ports
            and (item.remote[0] in place.addresses or item.remote[0].startswith(_LOOPBACK))
        ]


def _port(value: object) -> int:
    """Parse a port; return 0 if the text is no valid port."""
    text = str(value)
    number = int(text) if text.isascii() and text.isdecimal() else 0
    return number if number <= _LAST_PORT else 0
