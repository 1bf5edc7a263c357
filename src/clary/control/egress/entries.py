"""Entries of setting `reachable_networks`: services of the owner's own network that programs may reach.

Where: `settings` validates the entries, `server.egress_site` parses them, `policy` compares targets with them, and
`outlets` chooses the listeners of hosts for them.

    10.1.0.0/16           every TCP port of every address of the network
    10.1.0.0/16:5432      one TCP port of every address of the network
    192.168.7.20:5432     one port of one address; [fd00::20]:5432 for IPv6
    registry.lan:8080     one port of the addresses that the name has at the time of a request
    127.0.0.1:8088        one port of this machine, which an entry without a port or for a network never includes
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from clary.control.egress.addresses import Address, Network, is_never, plain

MAX_PORT = 65535
MAX_NAME = 253
EXPECTED = "an entry like 10.1.0.0/16, 192.168.7.20:5432, [fd00::20]:5432, registry.lan:8080 or 127.0.0.1:8088"

_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
# Unusual forms that a resolver accepts as an address: 127.1, 0x7f000001, 017700000001.
_NUMBER_LABEL = re.compile(r"[0-9]+|0x[0-9a-f]*")
_BRACKETED = re.compile(r"\[([0-9A-Fa-f:.]+(?:/[0-9]{1,3})?)\](?::([0-9]{1,5}))?")


@dataclass(frozen=True)
class Reachable:
    """One entry: a name or a network, with one port or all ports."""

    name: str  # empty for a network
    network: Network | None
    port: int | None

    def __str__(self) -> str:
        place = self.name or str(self.network)
        if self.network is not None and self.network.num_addresses == 1:
            place = str(self.network.network_address)
        if self.port is None:
            return place
        return f"[{place}]:{self.port}" if ":" in place else f"{place}:{self.port}"

    @property
    def address(self) -> Address | None:
        """The only address of the entry; None for names and networks."""
        if self.network is None or self.network.num_addresses != 1:
            return None
        return self.network.network_address

    def has_port(self, port: int) -> bool:
        """Whether the entry covers a port."""
        return self.port is None or self.port == port


def is_name(text: str) -> bool:
    """Whether a lower-case text is a name for a DNS query, and not an unusual form of an address."""
    last = text.rpartition(".")[2]
    return len(text) <= MAX_NAME and bool(_NAME.fullmatch(text)) and not _NUMBER_LABEL.fullmatch(last)


def literal(text: str) -> Address | None:
    """Return the address that a client's text holds in its usual form; None for any other text."""
    try:
        return plain(text) if "%" not in text else None
    except ValueError:
        return None


def parse_entry(text: str) -> Reachable:
    """Parse one entry.

    Raises: ValueError naming the problem.
    """
    place, port_text = _split(text.strip().lower())
    port = _port(text, port_text)
    try:
        network = ipaddress.ip_network(place)
    except ValueError as error:
        if "/" in place or not is_name(place.rstrip(".")):
            raise ValueError(f"expected {EXPECTED}, got {text!r}: {error}") from None
        return Reachable(place.rstrip("."), None, port)
    if isinstance(network, ipaddress.IPv6Network) and network.num_addresses == 1:
        network = ipaddress.ip_network(plain(str(network.network_address)))
    if network.num_addresses == 1 and is_never(network.network_address):
        raise ValueError(
            f"{text!r}: such addresses serve cloud credentials or do not identify a single machine; remove the entry"
        )
    if network.is_loopback and (port is None or network.num_addresses != 1):
        raise ValueError(
            f"{text!r}: an entry for a service of this machine needs one address and a port, like 127.0.0.1:8088"
        )
    return Reachable("", network, port)


def _split(text: str) -> tuple[str, str | None]:
    bracketed = _BRACKETED.fullmatch(text)
    if bracketed:
        return bracketed[1], bracketed[2]
    if text.count(":") == 1:
        place, _, port = text.partition(":")
        return place, port
    return text, None  # an IPv6 network, or an entry without a port


def _port(entry: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MAX_PORT)) and 1 <= int(text) <= MAX_PORT):
        raise ValueError(f"{entry!r}: expected a port from 1 to {MAX_PORT}, got {text!r}")
    return int(text)
