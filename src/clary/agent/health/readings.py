"""Orders to the network program and its answers: plain data, JSON over its standard input and output.

Where: `network_doctor` writes a `NetworkOrder`, `network_program` answers with a `PortReading` and, later, with a
`NetworkReading`; `link_verdicts` turns both into findings. The readings are not judged here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from clary.base.string_enum import StrEnum

DOCTOR_PORT = 7796  # TCP and UDP port on every host; different from launchers' ports, because both may be open at once


class Answer(StrEnum):
    """The outcome of the attempts to reach a peer."""

    OPEN = "open"  # the peer's network program answers
    ABSENT = "absent"  # the peer's kernel answers, but its network program does not run
    SILENT = "silent"  # no answer was received
    BUSY = "busy"  # connections are accepted, but the peer's network program does not answer on them
    NO_WAY = "no_way"  # this host's own kernel refused to send


@dataclass(frozen=True, kw_only=True)
class Peer:
    """Another host, with the delay, loss and rate that the job's plan sets for its link."""

    name: str
    address: str
    round_trip_ms: float = 0.0
    loss_percent: float = 0.0  # in one direction
    rate_mbit_s: float | None = None  # None: as fast as the machine allows


@dataclass(frozen=True, kw_only=True)
class NetworkOrder:
    """The order to one host's network program."""

    host: str
    names: tuple[str, ...]  # names of all hosts, in the job's order
    address: str
    interface: str
    peers: tuple[Peer, ...]
    ports: tuple[int, ...]  # the job's own ports: must be free on this host and answer on peers
    hosts_file: str = ""  # path for a copy of the job's /etc/hosts, to check names with; empty: no check
    network_namespace: str | None = None  # file to join; None: no other namespace
    user_namespace: str | None = None  # file to join before the network namespace
    meet_s: float = 20.0  # time for the peers' network programs to start
    pause_s: float = 0.0  # pause after the reading of the ports, in favour of the job's starting programs


@dataclass(frozen=True, kw_only=True)
class PortReading:
    """The reading of the job's own ports; no probe touches these ports afterwards."""

    taken: tuple[int, ...] = ()  # the job's ports that are in use on this host
    silent: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # peer -> its silent ports
    better: Mapping[str, str] = field(default_factory=dict)  # another interface that reaches all peers -> address


@dataclass(frozen=True, kw_only=True)
class LinkReading:
    """Measurements from this host to one peer; a field that is None was not measured."""

    peer: str
    answer: Answer
    waited_s: float = 0.0  # seconds until the answer or the end of the attempts
    error: str = ""  # of the last attempt
    route_address: str = ""  # source address that the kernel picks for the peer
    route_interface: str = ""  # interface with that address; empty if there is none
    route_error: str = ""  # error if the kernel, given no interface, has no route to the peer
    round_trip_ms: float | None = None  # of the fastest small exchange: slower exchanges waited for a processor
    num_sent: int = 0  # small datagrams sent in the round with the least loss
    num_arrived: int | None = None  # of these, by the peer's count
    num_overrun: int = 0  # datagrams dropped by the peer's kernel; if any, `num_arrived` does not prove a loss
    num_heard: int = 0  # datagrams received from the peer
    interface_mtu: int = 0
    passing_mtu: int | None = None  # largest packet that was answered; 0: none
    rate_mbit_s: float | None = None
    silent_ports: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NetworkReading:
    """All measurements of one host's network program."""

    host: str
    interfaces: Mapping[str, str] = field(default_factory=dict)  # name -> address, of interfaces that are up
    reaches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # interface -> peers that answer through it
    taken_ports: tuple[int, ...] = ()
    names: Mapping[str, str] | None = None  # host -> address of its name; None: not checked
    names_error: str = ""
    sum: int | None = None  # result of the collective: each host contributes its index, from 1
    sum_error: str = ""
    links: tuple[LinkReading, ...] = ()
    seconds: float = 0.0  # duration of all measurements, including the wait for peers
