"""Targets to which programs may be connected. Pure: callers resolve each name once, before the decision.

Where: `connect_proxy` calls `may_ask` before it resolves a name, and `judge` with every address of the name before it
opens a connection; `outlets` calls `judge` for addresses that hosts reach without a proxy. A refusal does not reveal
whether the target listens, because the proxy has not connected to it.

    an entry of `reachable_networks` covers it    -> connected; on this machine only if the entry names the port, and
                                                     a single address or a name
    an address of the internet, port 443          -> connected by CONNECT if setting `internet` is on
    pypi.org and its host of files, port 443      -> as above, at any address that DNS returns, but not on this machine
    any other target                              -> refused
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clary.control.egress.addresses import Address, is_internet, is_never, plain
from clary.control.egress.entries import Reachable, is_name, literal

INTERNET_PORT = 443
# The default index of pip and uv: if a company's DNS replaces it by a mirror, programs get that mirror.
INDEX_NAMES = frozenset({"pypi.org", "files.pythonhosted.org"})
ADVICE = "the owner of the service may name it in setting reachable_networks"


@dataclass(frozen=True)
class Decision:
    """Addresses to connect to, in this order; without addresses, the reason of the refusal."""

    addresses: tuple[str, ...] = ()
    reason: str = ""

    @property
    def is_allowed(self) -> bool:
        """Whether the target is allowed."""
        return bool(self.addresses)


@dataclass(frozen=True, kw_only=True)
class EgressPolicy:
    """Targets that the settings allow.

    Args:
        has_internet: setting `internet`.
        reachable: setting `reachable_networks`, and further entries that the owner has named.
        own_ports: ports of this machine that belong to the service itself and its store.
        own_places: addresses and ports of servers that the service uses, such as its database's.
    """

    has_internet: bool
    reachable: tuple[Reachable, ...] = ()
    own_ports: frozenset[int] = frozenset()
    own_places: frozenset[tuple[Address, int]] = frozenset()

    def names(self, name: str, port: int) -> bool:
        """Whether an entry of the owner names exactly this target."""
        return any(entry.name == name and entry.has_port(port) for entry in self.reachable)

    def may_ask(self, name: str, port: int, *, is_plain_http: bool = False) -> Decision:
        """Decide before a name is resolved whether any of its addresses could be allowed.

        Without the internet, names that no entry lists are not even resolved: DNS queries could carry data out.

        Args:
            name: a name or an address, as the program wrote it.
            port: port of the target.
            is_plain_http: whether the client sent a plain http:// request, for which the internet is not allowed.
        Returns: a decision whose only address is the name itself.
        """
        address = literal(name)
        if address is None and not is_name(name):
            return Decision(reason=f"{name!r} is neither a name nor an address as usually written")
        entries = [entry for entry in self.reachable if entry.has_port(port)]
        by_internet = self.has_internet and port == INTERNET_PORT and not is_plain_http
        if by_internet or any(entry.name == name for entry in entries):
            return Decision((name,))
        if any(entry.network is not None for entry in entries) and (address is not None or self.has_internet):
            return Decision((name,))
        return Decision(reason=self._why_not(name, port))

    def judge(
        self,
        name: str,
        port: int,
        resolved: Sequence[str],
        *,
        is_own: Callable[[Address], bool],
        is_plain_http: bool = False,
    ) -> Decision:
        """Decide on a target by all its addresses: a single forbidden address refuses the target.

        Args:
            name: as the client gave it, in lower case.
            port: requested port.
            resolved: every present address of the name, in the form of `getaddrinfo`.
            is_own: whether a plain address is this machine's.
            is_plain_http: whether the client sent an http:// request and no CONNECT; only entries allow this.
        """
        asked = self.may_ask(name, port, is_plain_http=is_plain_http)
        if not asked.is_allowed:
            return asked
        by_internet = self.has_internet and port == INTERNET_PORT and not is_plain_http
        for text in resolved:
            address = plain(text)
            here = address.is_loopback or is_own(address)
            is_ours = (here and port in self.own_ports) or (address, port) in self.own_places
            if is_never(address) or is_ours:
                return Decision(reason=self._why_not(name, port))
            covered = any(self._covers(entry, name, address, port, is_here=here) for entry in self.reachable)
            is_offered = by_internet and not here and (is_internet(address) or name in INDEX_NAMES)
            if not covered and not is_offered:
                return Decision(reason=self._why_not(name, port))
        return Decision(tuple(dict.fromkeys(resolved)))

    def _covers(self, entry: Reachable, name: str, address: Address, port: int, *, is_here: bool) -> bool:
        if not entry.has_port(port):
            return False
        if is_here and entry.port is None:
            return False
        if entry.name:
            return entry.name == name
        if is_here and entry.address is None:
            return False  # a network never includes this machine
        return entry.network is not None and address in entry.network

    def _why_not(self, name: str, port: int) -> str:
        shown = f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
        offer = f"the internet at port {INTERNET_PORT}" if self.has_internet else "no internet (setting internet)"
        if self.reachable:
            offer += " and what setting reachable_networks names"
        return f"{shown} is not offered to programs here: they get {offer}; {ADVICE}"
