"""A proxy for clients that insist on AWS's own host names, and for programs that use the internet or the owner's LAN.

Where: `clary env --tls` sets HTTPS_PROXY to it, so that https://sts.<region>.amazonaws.com ends at the service's TLS
port without a change to other shells or files of the user. Programs inside hosts, which have no other route, reach it
through their relay. It answers CONNECT, and requests with an http:// URL:

    names that the certificate covers -> the TLS port, by CONNECT alone
    a bucket's own name at AWS        -> the TLS port, but as "everything else" if the bucket exists at AWS and not
                                         here: public data sets are downloaded from such names
    every other name of AWS           -> refused, unless `reachable_networks` names it
    the service's own http:// address -> the service, for jobs: the AWS Common Runtime (s3torchconnector) sends also
                                         these requests to the proxy, in spite of NO_PROXY
    everything else                   -> targets that `egress.policy` allows a client on this machine: port 443 of the
                                         internet by CONNECT, setting `reachable_networks`, and package indexes

[Note: a refusal looks at nothing] A name is resolved once, all its addresses are checked before a connection is opened,
and the connection uses a checked address. The proxy refuses a target without testing whether a server listens there, so
neither the text nor the time of the answer reveals that.

[Note: clients prove nothing] A client of a proxy does not authenticate itself. So another user of the machine could
occupy all places with tunnels, for as long as tunnels may be idle. Connections of root and of the service's own user,
relays of jobs included, keep their places; connections of other users get the remaining places and are evicted for new
ones, the oldest first.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from clary.base.errors import EngineError, Fault, ObjectStoreError
from clary.control.egress import bucket_probe, forwarding, local_users, own_addresses, tunnels
from clary.control.egress.addresses import Address
from clary.control.egress.heads import Asked, BadHead, body_length, read_request
from clary.control.egress.policy import INTERNET_PORT, Decision, EgressPolicy
from clary.control.egress.resolver import Resolver
from clary.control.egress.tunnels import close
from clary.control.objects.s3_request import bucket_of_host
from clary.control.server.edge.acceptor import Acceptor
from clary.control.server.edge.connection_table import OWN_ADDRESSES, ConnectionTable, counted_address

log = logging.getLogger(__name__)

HEAD_TIMEOUT_S = 10.0  # limit for a client's whole request head
CONNECT_TIMEOUT_S = 10.0  # limit for the lookup of a name, and again for the tries of all its addresses
IDLE_TIMEOUT_S = 900.0  # limit without a byte in either direction; longer than any pause in an upload of results
MAX_HEAD_BYTES = 16 * 1024
MAX_CONNECTIONS = 512  # concurrent ones, with or without a tunnel; each takes two descriptors
REMEMBER_S = 600.0  # how long an answer of AWS about a bucket counts
DOUBT_S = 10.0  # how long an unclear one counts
MAX_PROBES = 8  # questions to AWS at once
MAX_REMEMBERED = 1000  # such answers
# Domains of every partition; source: botocore, endpoints.json, dnsSuffix.
AWS_DOMAINS = (
    "amazonaws.com",
    "amazonaws.com.cn",
    "amazonaws.eu",
    "api.amazonwebservices.com.cn",
    "api.aws",
)

HasBucket = Callable[[str], Awaitable[bool]]
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class ConnectProxy:
    """Listens on a port of its own and serves each connection in a task.

    Args:
        host: address to listen on.
        tls_port: TLS port of the service on the same address; 0 without TLS.
        own_names: names of AWS that lead to the TLS port; `*.` in front stands for one label, as in a certificate.
        api_port: port of the service for http:// on the same address; 0: the proxy does not lead jobs there.
        has_internet: whether connections to names outside AWS are allowed if `policy` is None.
        policy: the allowed targets; None allows the internet, or nothing, by `has_internet`.
        has_bucket: returns whether a bucket exists here, or raises ObjectStoreError; None: every bucket exists.
        is_own: returns whether an address is this machine's; None asks the kernel.
    """

    def __init__(
        self,
        host: str,
        *,
        tls_port: int,
        own_names: frozenset[str],
        api_port: int = 0,
        has_internet: bool = False,
        policy: EgressPolicy | None = None,
        has_bucket: HasBucket | None = None,
        is_own: Callable[[Address], bool] | None = None,
    ) -> None:
        self._host = host
        self._tls_port = tls_port
        self._api_port = api_port
        self._own_names = own_names
        self._has_bucket = has_bucket
        self._at_aws: dict[str, tuple[bool, float]] = {}  # name -> answer, end of its time
        policy = policy or EgressPolicy(has_internet=has_internet)
        self._policy = replace(policy, own_ports=policy.own_ports | {tls_port})
        self._is_own = is_own or own_addresses.is_own
        self._probes: dict[str, asyncio.Future[bool]] = {}  # questions to AWS that are under way
        self._probing = asyncio.Semaphore(MAX_PROBES)
        self._resolver = Resolver()
        # A job gets at most a quarter of all places, and jobs never use the places of the owner's clients.
        self._table: ConnectionTable[asyncio.StreamWriter] = ConnectionTable(MAX_CONNECTIONS)
        self._acceptor = Acceptor(self._serve_logged, limit=MAX_HEAD_BYTES)

    @property
    def num_connections(self) -> int:
        """Number of connected clients."""
        return self._acceptor.num_connections

    @property
    def listening(self) -> socket.socket | None:
        """The listening socket; None unless it listens."""
        return self._acceptor.listening

    async def start(self, port: int = 0, *, listening: socket.socket | None = None) -> int:
        """Listen and return the port; 0 chooses a free port.

        Args:
            port: port.
            listening: socket that listens there already; None makes one.
        Raises: EngineError if the port is not free or not permitted.
        """
        try:
            taken = self._acceptor.start(self._host, port, listening=listening)
        except OSError as error:
            raise EngineError(f"cannot listen on {self._host}:{port}: {error}", fault=Fault.USER) from error
        self._policy = replace(self._policy, own_ports=self._policy.own_ports | {taken})
        return taken

    async def close(self) -> None:
        """Stop listening and end all connections."""
        await self._acceptor.close()
        probes = list(self._probes.values())
        for probe in probes:
            probe.cancel()
        await asyncio.gather(*probes, return_exceptions=True)
        self._resolver.close()

    async def _serve_logged(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = counted_address(writer.get_extra_info("peername"), writer.get_extra_info("sockname"))
        arrival = self._table.arrive(writer, address)
        if arrival.evicted is not None:
            log.debug("proxy: %s: a connection of an unknown client was closed", arrival.reason)
            arrival.evicted.transport.abort()
        try:
            if arrival.is_accepted:
                await self._serve((reader, writer))
            else:
                await _answer(writer, "503 Service Unavailable", f"{arrival.reason}; close some, or try again")
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            log.debug("proxy: connection ended: %s", error)
            writer.transport.abort()  # a truncated stream must not look complete
        finally:
            self._table.leave(writer)
            await close(writer)

    async def _serve(self, near: Ends) -> None:
        reader, writer = near
        async with asyncio.timeout(HEAD_TIMEOUT_S):
            head = await reader.readuntil(b"\r\n\r\n")
        if local_users.is_own_client(writer.get_extra_info("peername"), writer.get_extra_info("sockname")):
            self._table.settle(writer)  # [Note: clients prove nothing]
        try:
            asked = read_request(head)
            body_length(asked)
        except BadHead as error:
            await _answer(writer, "405 Method Not Allowed", str(error))
            return
        far = await self._connect(asked, writer)
        if far is None:
            return
        try:
            if asked.is_tunnel:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await tunnels.join(near, far, idle_timeout_s=IDLE_TIMEOUT_S)
                return
            try:
                await forwarding.forward(asked, near, far, idle_timeout_s=IDLE_TIMEOUT_S)
            except BadHead as error:
                await _answer(writer, "502 Bad Gateway", f"{asked.place}: {error}")
        except BaseException:
            far[1].transport.abort()
            raise
        finally:
            await close(far[1])

    async def _connect(self, asked: Asked, writer: asyncio.StreamWriter) -> Ends | None:
        """Return reader and writer of a connection to a client's target, or None after an answer with the reason."""
        source = ""
        if asked.is_tunnel and self._tls_port and await self._leads_here(asked, writer):
            decision, port = Decision((self._host,)), self._tls_port
            source = _job_address(writer)
        elif self._names_api(asked) and _job_address(writer):
            decision, port, source = Decision((self._host,)), self._api_port, _job_address(writer)
        else:
            port = asked.port
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    decision = await self._decide(asked, writer)
            except (OSError, TimeoutError, UnicodeError) as error:  # DNS cannot encode a name like "a..b"
                await _answer(writer, "502 Bad Gateway", f"{asked.place} cannot be found: {error or 'no answer'}")
                return None
        if not decision.is_allowed:
            log.debug("proxy: refused: %s", decision.reason)
            await _answer(writer, "403 Forbidden", decision.reason)
            return None
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                return await _open(decision.addresses, port, source=source)
        except (OSError, TimeoutError) as error:
            await _answer(writer, "502 Bad Gateway", f"{asked.place} cannot be reached: {error or 'no answer'}")
            return None

    async def _decide(self, asked: Asked, writer: asyncio.StreamWriter) -> Decision:
        name, port = asked.name, asked.port
        is_of_aws = self._is_ours(name) or f".{name}".endswith(tuple(f".{domain}" for domain in AWS_DOMAINS))
        if is_of_aws and not self._policy.names(name, port) and not await self._is_foreign_bucket(asked, writer):
            return Decision(
                reason=f"{name} belongs to AWS and is not offered here; nothing meant for AWS leaves this machine"
            )
        return await self._judge(asked, writer)

    async def _judge(self, asked: Asked, writer: asyncio.StreamWriter) -> Decision:
        name, port = asked.name, asked.port
        if not _is_from_here(writer):
            return Decision(reason=f"{name}: this service connects clients on its own machine only")
        asked_first = self._policy.may_ask(name, port, is_plain_http=not asked.is_tunnel)
        if not asked_first.is_allowed:
            return asked_first
        resolved = await self._resolver.resolve(name, port, client=_peer_text(writer))
        return self._policy.judge(name, port, resolved, is_own=self._is_own, is_plain_http=not asked.is_tunnel)

    async def _leads_here(self, asked: Asked, writer: asyncio.StreamWriter) -> bool:
        if not self._is_ours(asked.name) or self._policy.names(asked.name, asked.port):
            return False
        return not await self._is_foreign_bucket(asked, writer)

    async def _is_foreign_bucket(self, asked: Asked, writer: asyncio.StreamWriter) -> bool:
        """Whether a name is that of a bucket which exists at AWS and not here, and which the policy lets clients reach.

        Any doubt leads to this service, which answers with its own error.
        """
        bucket = bucket_of_host(asked.name)
        if bucket is None or self._has_bucket is None or not asked.is_tunnel or asked.port != INTERNET_PORT:
            return False
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                if await self._has_bucket(bucket):
                    return False
                decision = await self._judge(asked, writer)
                return decision.is_allowed and await self._aws_has(asked.name, decision.addresses)
        except (ObjectStoreError, OSError, TimeoutError, UnicodeError) as error:
            log.debug("proxy: bucket %s was not looked up: %s", bucket, error)
            return False

    async def _aws_has(self, name: str, addresses: Sequence[str]) -> bool:
        known = self._at_aws.get(name)
        if known is not None and asyncio.get_running_loop().time() < known[1]:
            return known[0]
        if name not in self._probes:  # several connections to one name share a question
            self._probes[name] = asyncio.ensure_future(self._probe(name, addresses))
        return await asyncio.shield(self._probes[name])

    async def _probe(self, name: str, addresses: Sequence[str]) -> bool:
        try:
            async with self._probing:
                found = await bucket_probe.aws_has_bucket(name, addresses)
            while len(self._at_aws) >= MAX_REMEMBERED:
                del self._at_aws[next(iter(self._at_aws))]
            for_s = DOUBT_S if found is None else REMEMBER_S
            self._at_aws.pop(name, None)
            self._at_aws[name] = (bool(found), asyncio.get_running_loop().time() + for_s)
            return bool(found)
        finally:
            del self._probes[name]

    def _names_api(self, asked: Asked) -> bool:
        """Whether a client asks for the address that programs have in AWS_ENDPOINT_URL."""
        is_here = asked.name in {"127.0.0.1", "localhost", self._host}
        return not asked.is_tunnel and is_here and asked.port == self._api_port != 0

    def _is_ours(self, name: str) -> bool:
        return name in self._own_names or f"*.{name.partition('.')[2]}" in self._own_names


async def _open(addresses: Sequence[str], port: int, *, source: str = "") -> Ends:
    """Connect to the first address that answers, from `source` if given; raises the OSError of the last address."""
    local = (source, 0) if source else None
    for address in addresses[:-1]:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S / len(addresses)):
                return await asyncio.open_connection(address, port, limit=MAX_HEAD_BYTES, local_addr=local)
        except (OSError, TimeoutError) as error:
            log.debug("proxy: %s:%d: %s", address, port, error)
    return await asyncio.open_connection(addresses[-1], port, limit=MAX_HEAD_BYTES, local_addr=local)


def _peer_text(writer: asyncio.StreamWriter) -> str:
    peer = writer.get_extra_info("peername")
    return str(peer[0]) if peer else ""


def _job_address(writer: asyncio.StreamWriter) -> str:
    """Return the client's address if it is a loopback address of a job, else an empty text.

    The service counts connections by address: a job's connection from the proxy's own address would count as the
    owner's.
    """
    peer = _peer_text(writer)
    return peer if peer.startswith("127.") and peer not in OWN_ADDRESSES else ""


def _is_from_here(writer: asyncio.StreamWriter) -> bool:
    """Whether the client is on this machine: its address is loopback, or equals that of the connection's other end."""
    peer = _address(writer, "peername")
    return peer.is_loopback or peer == _address(writer, "sockname")


def _address(writer: asyncio.StreamWriter, end: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the address of one end of a connection; an IPv4 address mapped into IPv6 is unwrapped."""
    address = ipaddress.ip_address(writer.get_extra_info(end)[0].partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


async def _answer(writer: asyncio.StreamWriter, status: str, text: str) -> None:
    body = text.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
