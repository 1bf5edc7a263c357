"""The identity of this rank's host, and the address at which other ranks reach this rank.

Where: `group.connect_group` calls these functions before it publishes this rank's record. Sources: random(4) for
boot_id, namespaces(7), netdevice(7) for SIOCGIFADDR, /proc/net/if_inet6.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path

from clary.train._native.errors import BootstrapError
from clary.train.collective.settings import CollectiveSettings

HAS_SHARED_MEMORY = sys.platform == "linux" and hasattr(os, "memfd_create")
_SIOCGIFADDR = 0x8915  # linux/sockios.h: reads the IPv4 address of an interface
_NAME_BYTES, _REQUEST_BYTES = 15, 40  # sizes in struct ifreq: the name, and the whole struct
_ADDRESS_PLACE = slice(20, 24)  # bytes of the IPv4 address in struct ifreq
_ANY_PORT = 9  # "discard": connecting a datagram socket sends nothing


def host_identity(settings: CollectiveSettings, rank: int) -> str:
    """Return a text that is equal only for ranks that can share memory.

    It contains the word of CLARY_COLLECTIVE_HOST, the machine's name, boot id, network namespace (to which abstract
    Unix sockets belong), user namespace and user. Copies of one virtual machine may differ only in the name. If memory
    cannot be shared by descriptor, each rank counts as a host of its own, and its traffic uses loopback.
    """
    parts = [settings.host, socket.gethostname()]
    if HAS_SHARED_MEMORY:
        try:
            boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
            namespaces = (os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "user"))
            return "/".join((*parts, boot_id, *namespaces, str(os.getuid())))
        except OSError:  # no /proc
            pass
    return "/".join((*parts, f"rank-{rank}"))


def host_name(settings: CollectiveSettings) -> str:
    """Return the name of this host for messages."""
    return settings.host or settings.sagemaker_host or socket.gethostname()


def own_address(settings: CollectiveSettings) -> str:
    """Return the address, IPv4 or IPv6 as text, on which this rank listens.

    In this order: the address of CLARY_COLLECTIVE_INTERFACE; of the first existing interface in the variables of other
    libraries; the source address of packets to MASTER_ADDR; the hostname's address; the first other interface's
    address. Loopback is used only if MASTER_ADDR is loopback or there is no other address, since /etc/hosts often maps
    the hostname to loopback.
    Raises: BootstrapError if CLARY_COLLECTIVE_INTERFACE names an interface that does not exist or has no address.
    """
    if settings.interface:
        address = interface_address(settings.interface)
        if address is None:
            raise BootstrapError(
                f"CLARY_COLLECTIVE_INTERFACE is {settings.interface!r}, which has no address here; this host has "
                f"{_interfaces_in_words()}: name one of these, or leave it empty"
            )
        return address
    if hinted := _hinted_address(settings):
        return hinted
    master = settings.master_address
    routed = _routed_address(master) if master else None
    if routed is not None and (not _is_loopback(routed) or _is_loopback(master)):
        return routed
    named = _routed_address(socket.gethostname())
    if named is not None and not _is_loopback(named):
        return named
    for _, name in socket.if_nameindex():
        address = interface_address(name)
        if address is not None and not _is_loopback(address):
            return address
    return routed or named or "127.0.0.1"


def interface_address(name: str) -> str | None:
    """Return the address of an interface, IPv4 before IPv6; None if it does not exist or has no address."""
    if sys.platform != "linux":
        return None
    import fcntl

    request = struct.pack(f"{_REQUEST_BYTES}s", name.encode()[:_NAME_BYTES])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        return socket.inet_ntoa(fcntl.ioctl(probe, _SIOCGIFADDR, request)[_ADDRESS_PLACE])
    return _ipv6_address(name)


def _ipv6_address(name: str) -> str | None:
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines():
            digits, *_, device = line.split()
            address = ipaddress.IPv6Address(int(digits, 16))
            if device == name and not address.is_link_local:  # the other side would need its scope
                return str(address)
    return None


def _hinted_address(settings: CollectiveSettings) -> str | None:
    """Return the address of the first existing interface that a variable of another library names."""
    names = [name for _, name in socket.if_nameindex()]
    choices: list[Callable[[str], bool]] = []
    if settings.gloo_interface:
        first = settings.gloo_interface.split(",")[0].strip()
        choices.append(lambda name: name == first)
    if settings.nccl_interface and not settings.nccl_interface.startswith("^"):
        words = [word.strip() for word in settings.nccl_interface.split(",")]
        choices.append(lambda name: any(_nccl_means(word, name) for word in words))
    if settings.sagemaker_interface:
        choices.append(lambda name: name == settings.sagemaker_interface)
    for is_meant in choices:
        for name in filter(is_meant, names):
            if address := interface_address(name):
                return address
    return None


def _nccl_means(word: str, name: str) -> bool:
    return name == word[1:] if word.startswith("=") else bool(word) and name.startswith(word)


def _routed_address(target: str) -> str | None:
    """Return the source address of packets to `target`."""
    with contextlib.suppress(OSError):
        for family, kind, protocol, _, place in socket.getaddrinfo(target, _ANY_PORT, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.connect(place)
                return str(probe.getsockname()[0]).partition("%")[0]
    return None


def _is_loopback(address: str) -> bool:
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:  # `address` is a name
        return False


def _interfaces_in_words() -> str:
    found = [f"{name} ({interface_address(name) or 'no address'})" for _, name in socket.if_nameindex()]
    return ", ".join(found) or "no interfaces"
