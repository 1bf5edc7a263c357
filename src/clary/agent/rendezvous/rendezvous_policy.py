"""Decides when the processes of a host have found the processes of the other hosts. Pure.

Where: `rendezvous_watch` shows it the connections of the host's network. Stores and coordinators of every launcher sit
behind MASTER_PORT of one host, jax's coordinator behind the port after it, so a process has arrived once it is
connected to one of the two ports:

- a host whose one process is connected there on any host, its own included, has arrived: torch's rank 0 connects to its
  own store; torchrun, mpirun and users' commands are one process for Clary, whatever they start;
- of a host with several processes each has to hold a connection of its own;
- a process that only listens there, as a coordinator without a client does, has arrived once every other host has
  connected to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clary.agent.rendezvous.connection_table import Connection
from clary.contract.launch_plan import HostPlan, Isolation, LaunchPlan
from clary.contract.settings.distribution import read_distribution

_LOOPBACK = ("127.", "::1")
_STORE_PORT_VARIABLE = "CLARY_COLLECTIVE_PORT"  # of `train.collective.settings`
_STORE_PORT_PARAMETER = "ddp_port"  # of smdistributed.modelparallel
_LAST_PORT = 65535


@dataclass(frozen=True, kw_only=True)
class MeetingPlace:
    """Where a host's processes are expected to connect."""

    ports: frozenset[int]
    addresses: frozenset[str]  # of all hosts; loopback addresses count, too
    others: frozenset[str]  # addresses of the other hosts that take part
    num_processes: int  # that Clary starts on this host
    may_have_old: bool = True  # whether another program may have left connections in the host's network


def meeting_place(plan: LaunchPlan, host: HostPlan, *, num_processes: int) -> MeetingPlace | None:
    """Return where to look; None for a host without peers, or without a network namespace of its own.

    Args:
        plan: of the attempt.
        host: one of the plan's.
        num_processes: that Clary starts on this host.
    """
    if plan.isolation is not Isolation.NAMESPACES or host.name not in plan.network.namespace_paths:
        return None
    members = list(plan.hosts)
    ports = {
        plan.network.master_port,
        plan.network.jax_port,
        _port(plan.user_environment.get(_STORE_PORT_VARIABLE)),
    }
    if plan.command is None:  # with a command, hyperparameters launch nothing
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
    """Connections of one program, as seen so far."""

    def __init__(self, place: MeetingPlace) -> None:
        self._place = place
        # Connections left by an earlier program of the host; empty for a host that had no earlier program.
        self._old: frozenset[tuple[object, object]] | None = None if place.may_have_old else frozenset()
        self._heard: set[str] = set()  # addresses that have connected to this host
        self._holders: dict[int, int] = {}  # inode -> process, of connections to the master port

    def needs_holders(self, connections: Sequence[Connection]) -> bool:
        """Whether `is_complete` needs the owners of the sockets, because processes must be distinguished."""
        return self._place.num_processes > 1 and any(
            item.is_established and item.inode not in self._holders for item in self._to_master(connections)
        )

    def is_complete(self, connections: Sequence[Connection], holders: Mapping[int, int]) -> bool:
        """Add the connections of one look; return whether all processes of this host have arrived.

        Args:
            connections: of the host's network, at the ports of the meeting place; the first look is taken before any
                connection of the program can have ended.
            holders: inode -> process.
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
                # A connection of an unknown process counts as one process.
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
    """Return the port that a text names, or 0 if it is not a port."""
    text = str(value)
    number = int(text) if text.isascii() and text.isdecimal() else 0
    return number if number <= _LAST_PORT else 0
