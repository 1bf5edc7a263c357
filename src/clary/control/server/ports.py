"""Chooses the ports of the service.

Where: ports are chosen before the service listens, because agents, hosts and the client files name them. A killed
service leaves its record, and running hosts know its ports, so a port that the settings leave open is taken from that
record again.
"""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from clary.base.errors import EngineError, Fault
from clary.control.server.edge.handed_sockets import HandedSockets
from clary.control.settings import Settings
from clary.control.state_folder import ServiceRecord


@dataclass(frozen=True, kw_only=True)
class Urls:
    """URLs of the service; empty if it has no such port."""

    api: str
    tls: str
    proxy: str
    nodes: str  # URL for other machines; empty if hosts run on this machine


@dataclass(frozen=True, kw_only=True)
class Ports:
    """Ports of one service; it has both a TLS port and a proxy, or neither."""

    api: int
    tls: int | None
    proxy: int | None

    def urls(self, settings: Settings) -> Urls:
        """Return the ports as URLs."""
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        return Urls(
            api=f"http://{host}:{self.api}",
            tls=f"https://localhost:{self.tls}" if self.tls is not None else "",
            proxy=f"http://{host}:{self.proxy}" if self.proxy is not None else "",
            nodes=self._nodes_url(settings),
        )

    def _nodes_url(self, settings: Settings) -> str:
        if settings.engine == "local":
            return ""
        return settings.advertise_url or f"https://{own_address()}:{self.tls}"


def choose_ports(settings: Settings, left: ServiceRecord | None, *, handed: HandedSockets | None = None) -> Ports:
    """Return ports that were free during this call.

    Args:
        settings: `port` 0 chooses a free port, `tls_port` 0 opens no TLS port.
        left: record of a service that ended without removing the record.
        handed: sockets that the earlier service has handed over; their ports count as free. None: there are none.
    Raises: EngineError naming a port that is taken; also if hosts are other machines and no TLS port is set.
    """
    if settings.engine != "local" and not settings.tls_port:
        raise EngineError(
            f"engine {settings.engine}: other machines can reach the service only by TLS, but the setting "
            "tls_port is 0; set a port",
            fault=Fault.USER,
        )
    handed = handed or HandedSockets()
    with contextlib.ExitStack() as held:
        api = _take(held, settings.host, settings.port, _port_of(left.url if left else ""), handed)
        if not settings.tls_port:
            return Ports(api=api, tls=None, proxy=None)
        tls = _take(held, settings.host, settings.tls_port, 0, handed)
        proxy = _take(held, settings.host, 0, _port_of(left.proxy_url if left else ""), handed)
        return Ports(api=api, tls=tls, proxy=proxy)


def require_free(settings: Settings, running: ServiceRecord | None) -> None:
    """Check that the next service can listen on its address, and on the ports that the running one does not use.

    Args:
        settings: settings of the next service.
        running: record of the service that runs.
    Raises: EngineError naming a port that is taken; port 0 stands for an address at which none can be taken.
    """
    used = {_port_of(url) for url in (running.url, running.tls_url) if url} if running else set()
    with contextlib.ExitStack() as held:
        for port in {0, settings.port, settings.tls_port} - used:
            _take(held, settings.host, port, 0, HandedSockets())


def nodes_host(settings: Settings) -> str:
    """Return the address or name by which other machines reach the TLS port; empty with engine local."""
    if settings.engine == "local":
        return ""
    return urlsplit(settings.advertise_url).hostname or own_address()


def own_address() -> str:
    """Return the address that this machine uses towards other machines; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("192.0.2.1", 9))  # RFC 5737: an address that no machine has
            return str(asking.getsockname()[0])
        except OSError:
            return "127.0.0.1"  # without a route, the nodes are this machine, or advertise_url names the address


def _take(held: contextlib.ExitStack, host: str, wanted: int, earlier: int, handed: HandedSockets) -> int:
    """Bind `wanted`; if 0, the earlier port, or a free port. The socket stays open until all ports are chosen."""
    if handed.has(host, wanted or earlier):
        return wanted or earlier
    handed.close_port(wanted or earlier)
    listening = held.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if not wanted and earlier:
        with contextlib.suppress(OSError):
            listening.bind((host, earlier))
            return earlier
    try:
        listening.bind((host, wanted))
    except OSError as error:
        raise EngineError(
            f"cannot listen on {host}:{wanted}: {error.strerror}; stop the program that uses this port, "
            "or set port or tls_port",
            fault=Fault.USER,
        ) from error
    return int(listening.getsockname()[1])


def _port_of(url: str) -> int:
    return urlsplit(url).port or 0
