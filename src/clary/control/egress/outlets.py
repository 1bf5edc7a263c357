"""Addresses in the owner's network that hosts reach as if they had a route, for clients without proxy support.

Where: `LocalEngine` calls it when it makes a job's network; the anchor then listens in every host at the same address
and port, and the host's /etc/hosts has the names. Only single addresses and names with a port are reached this way,
over IPv4; whole networks, IPv6, and ports 80 and 443 of the internet are reached through the proxy.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass

from clary.control.egress import own_addresses, resolver
from clary.control.egress.addresses import Address, is_internet, plain
from clary.control.egress.entries import Reachable
from clary.control.egress.policy import EgressPolicy

RESOLVE_TIMEOUT_S = 3.0  # limit for all names together; a job starts without names that take longer
MAX_THREADS = 16
_WEB_PORTS = (80, 443)


@dataclass(frozen=True)
class Outlet:
    """One address and port of the machine's network that every host reaches, too."""

    address: str
    port: int
    name: str = ""  # name for /etc/hosts; empty for an address, and for a name that every host has


@dataclass(frozen=True)
class Outlets:
    """Outlets that were found, and the entries that failed, each with the reason."""

    places: tuple[Outlet, ...] = ()
    missing: tuple[str, ...] = ()


def outlets_of(
    policy: EgressPolicy,
    *,
    taken: ipaddress.IPv4Network,
    resolve: Callable[[str, int], list[str]] = resolver.addresses_of,
    is_own: Callable[[Address], bool] = own_addresses.is_own,
) -> Outlets:
    """Return the outlets of the policy's entries; resolving names blocks for at most `RESOLVE_TIMEOUT_S`.

    Args:
        policy: decides on every outlet.
        taken: the jobs' own network, whose addresses belong to hosts.
        resolve: resolves a name to addresses.
        is_own: whether an address is this machine's.
    """
    entries = [entry for entry in policy.reachable if entry.port is not None]
    found = _resolve([entry for entry in entries if entry.name], resolve)
    places: dict[tuple[str, int], Outlet] = {}
    missing: list[str] = []
    for entry in entries:
        resolved = found.get(entry.name, []) if entry.name else [str(entry.address or "")]
        outlet = _outlet(policy, entry, resolved, taken=taken, is_own=is_own)
        if isinstance(outlet, Outlet):
            places.setdefault((outlet.name or outlet.address, outlet.port), outlet)
        elif outlet:
            missing.append(f"{entry}: {outlet}")
    return Outlets(tuple(places.values()), tuple(missing))


def _outlet(
    policy: EgressPolicy,
    entry: Reachable,
    resolved: Sequence[str],
    *,
    taken: ipaddress.IPv4Network,
    is_own: Callable[[Address], bool],
) -> Outlet | str:
    """Return the outlet of one entry, or the reason why it has no outlet; an empty reason if the proxy serves it."""
    assert entry.port is not None, "entries without a port were left out"
    if resolved == [""]:
        return ""  # a network
    if not resolved:
        return f"the name was not found within {RESOLVE_TIMEOUT_S:g} s"
    name = entry.name or resolved[0]
    try:
        decision = policy.judge(name, entry.port, resolved, is_own=is_own, is_plain_http=True)
    except OSError as error:
        return str(error)
    if not decision.is_allowed:
        return decision.reason
    addresses = [plain(text) for text in decision.addresses]
    address = next((one for one in addresses if isinstance(one, ipaddress.IPv4Address)), None)
    if address is None:
        return ""
    if entry.port in _WEB_PORTS and is_internet(address):
        return ""  # such names change their addresses, and their clients support proxies
    if address in taken:
        return f"{address} lies in {taken}, where hosts of jobs have their addresses"
    has_name_anyway = entry.name == "localhost"
    return Outlet(str(address), entry.port, "" if has_name_anyway else entry.name)


def _resolve(entries: Sequence[Reachable], resolve: Callable[[str, int], list[str]]) -> dict[str, list[str]]:
    """Return name -> addresses, for names that were found in time."""
    if not entries:
        return {}
    threads = ThreadPoolExecutor(min(len(entries), MAX_THREADS), thread_name_prefix="outlet-names")
    ports = {entry.name: entry.port or 0 for entry in entries}
    asked = {name: threads.submit(resolve, name, port) for name, port in ports.items()}
    wait(asked.values(), RESOLVE_TIMEOUT_S)
    threads.shutdown(wait=False, cancel_futures=True)
    return {
        name: future.result()
        for name, future in asked.items()
        if future.done() and not future.cancelled() and future.exception() is None
    }
