"""Kinds of IP addresses: public and forbidden addresses, and addresses embedded in other addresses.

Where: `entries` uses it to refuse entries, and `policy` checks every resolved address with it. Pure; `own_addresses`
finds this machine's addresses.
Source: IANA special-purpose address registries for IPv4 and IPv6; RFC 6052 (NAT64), RFC 5214 (ISATAP), RFC 3056 (6to4);
the cloud providers' documentation of their metadata services.
"""

from __future__ import annotations

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# No settings allow connections to these networks: clouds serve the machine's credentials there, or the addresses do not
# identify a single machine.
NEVER: tuple[Network, ...] = tuple(
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8",
        "169.254.0.0/16",  # link-local; 169.254.169.254, 169.254.170.2
        "100.100.100.200/32",  # Alibaba
        "168.63.129.16/32",  # Azure
        "192.0.0.192/32",  # Oracle
        "224.0.0.0/4",
        "255.255.255.255/32",
        "::/128",
        "fe80::/10",
        "fec0::/10",
        "fd00:ec2::/32",  # Amazon: fd00:ec2::254 and other Nitro services
        "fd20:ce::254/128",  # Google
        "fd00:c1::a9fe:a9fe/128",  # Oracle
        "ff00::/8",
    )
)
# Networks outside of the internet, although `is_global` of some Python releases is true for them; most are private or
# for tunnels.
_NOT_INTERNET: tuple[Network, ...] = tuple(
    ipaddress.ip_network(text)
    for text in (
        "100.64.0.0/10",
        "192.0.0.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "240.0.0.0/4",
        "2001::/23",  # Teredo and others
        "2001:db8::/32",
        "2002::/16",  # 6to4
        "3fff::/20",
        "5f00::/16",
        "64:ff9b:1::/48",
    )
)
_UNICAST_V6 = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_ISATAP = (0x00005EFE, 0x02005EFE)  # third quarter of the address; the fourth quarter is an IPv4 address


def plain(text: str) -> Address:
    """Parse an address from `getaddrinfo`, without its zone; unwrap an IPv4 address in IPv6.

    Raises: ValueError for a text that is not an address.
    """
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def is_never(address: Address) -> bool:
    """Whether connections to a plain address are forbidden under all settings."""
    return any(address in network for network in NEVER)


def is_internet(address: Address) -> bool:
    """Whether a plain address belongs to the public internet."""
    if is_never(address) or not address.is_global or address.is_multicast or address.is_reserved:
        return False
    if any(address in network for network in _NOT_INTERNET):
        return False
    if isinstance(address, ipaddress.IPv6Address):
        return address in _UNICAST_V6 and (int(address) >> 32) & 0xFFFFFFFF not in _ISATAP
    return True
