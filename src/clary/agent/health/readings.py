"""Orders to the network program and its answers: plain data, JSON over its standard input and output.

Where: `network_doctor` writes a `NetworkOrder`, `network_program` answers with a `PortReading` and, later, with a
`NetworkReading`; `link_verdicts` turns both into findings. Nothing here says what is good or bad.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from clary.base.string_enum import StrEnum

DOCTOR_PORT = 7796  # of every host, TCP and UDP; none that a launcher of ours takes, for it may be open beside one


class Answer(StrEnum):
    """The outcome of the attempts to reach a peer."""

    OPEN = "open"  # the peer's network program answers
    ABSENT = "absent"  # the peer's kernel answers, its network program does not run
    SILENT = "silent"  # nothing came back
    BUSY = "busy"  # connections stand, but the peer's network program says nothing on them
    NO_WAY = "no_way"  # this host's own kernel refused to send


@dataclass(frozen=True, kw_only=True)
class Peer:
    """Another host, with the delay, loss and rate of its link by the job's own plan."""

    name: str
    address: str
    round_trip_ms: float = 0.0
    loss_percent: float = 0.0  # one way
    rate_mbit_s: float | None = None  # None: as fast as the machine allows


@dataclass(frozen=True, kw_only=True)
class NetworkOrder:
    """The order to one host's network program."""

    host: str
    names: tuple[str, ...]  # of all hosts, in the job's order
    address: str
    interface: str
    peers: tuple[Peer, ...]
    ports: tuple[int, ...]  # the job's own: free here, and not dropped on the way to peers
    hosts_file: str = ""  # where a /etc/hosts of the job may be put for the check of names; empty: not checked
    network_namespace: str | None = None  # file to join; None stays where it is
    user_namespace: str | None = None  # file to join before that
    meet_s: float = 20.0  # for the peers' network programs to start
    pause_s: float = 0.0  # after the reading of the ports, in which this program leaves the processors to others


@dataclass(frozen=True, kw_only=True)
class PortReading:
    """The findings at the job's own ports; no probe touches these ports afterwards."""

    taken: tuple[int, ...] = ()  # of this host
    silent: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # peer -> ports that alone say nothing
    better: Mapping[str, str] = field(default_factory=dict)  # interface that reaches all peers, not the job's: address


@dataclass(frozen=True, kw_only=True)
class LinkReading:
    """Measurements from this host to one peer; a field that is None was not measured."""

    peer: str
    answer: Answer
    waited_s: float = 0.0  # until the answer, or in vain
    error: str = ""  # of the last attempt
    route_address: str = ""  # source address that the kernel picks for the peer
    route_interface: str = ""  # whose address that is; empty if no host has it
    route_error: str = ""  # why the kernel has no way to the peer, unless told through which interface
    round_trip_ms: float | None = None  # of the quickest small exchange: the others had to wait for a processor
    num_sent: int = 0  # small datagrams, of the round that lost least
    num_arrived: int | None = None  # of these, as the peer counted
    num_overrun: int = 0  # datagrams that the peer's kernel had no room for: the count says nothing then
    num_heard: int = 0  # datagrams of the peer that came here
    interface_mtu: int = 0
    passing_mtu: int | None = None  # largest packet that was answered; 0: none
    rate_mbit_s: float | None = None
    silent_ports: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NetworkReading:
    """Everything that one host's network program has measured."""

    host: str
    interfaces: Mapping[str, str] = field(default_factory=dict)  # name -> address, of those that are up
    reaches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # interface -> peers that answer through it
    taken_ports: tuple[int, ...] = ()
    names: Mapping[str, str] | None = None  # host -> what its name resolves to; None: not checked
    names_error: str = ""
    sum: int | None = None  # of the collective: every host gives its place, counted from 1
    sum_error: str = ""
    links: tuple[LinkReading, ...] = ()
    seconds: float = 0.0  # that all of it took, with the wait for peers
