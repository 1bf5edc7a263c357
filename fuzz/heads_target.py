"""Heads before anybody is known: of the proxy and of the listener, Host headers, and settings of the proxy.

What must hold: nothing but the documented refusals comes out, at once; a target of the proxy is a name or an address
and a port; what is written on for http:// is one head with the framing that was judged; no entry or name leads to an
address that nobody may be connected to; no head is for two handlers; bodies stay within their budget.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from multidict import CIMultiDict

from clary.control.egress.addresses import is_never, plain
from clary.control.egress.entries import Reachable, parse_entry
from clary.control.egress.heads import Asked, BadHead, answer_head, body_length, read_request, request_head
from clary.control.egress.policy import EgressPolicy
from clary.control.server.edge import matching
from clary.control.server.edge.body_budget import FREE_BYTES, BodyBudget, BodyTicket
from clary.control.server.edge.host_names import HostNames
from fuzz.byte_reader import ByteReader
from fuzz.findings import require
from fuzz.targets import Run

if TYPE_CHECKING:
    from aiohttp import web

MAX_S = 2.0  # of the process's own time; a head has 16 KiB
MAX_REFUSAL = 1500  # of 80 characters of a name, each of which may be shown as several
_METHODS = ("CONNECT", "GET", "POST", "get", "connect", "OPTIONS", "G" * 30, "")
_PLACES = (
    "example.com:443",
    "http://example.com/a?b",
    "http://example.com:8080",
    "http://[::1]/",
    "[::1]:443",
    "127.0.0.1:443",
    "0x7f000001:443",
    "127.1:443",
    "169.254.169.254:80",
    "[::ffff:169.254.169.254]:443",
    "[64:ff9b::a9fe:a9fe]:443",
    "registry.lan:8080",
    "a..b:443",
    "localhost.:443",
    "a@b:443",
    "example.com:0",
    "example.com:99999",
    "*",
)
_VERSIONS = (" HTTP/1.1", " HTTP/1.0", " HTTP/2", "", "\tHTTP/1.1")
_NAMES = ("Host", "Content-Length", "Transfer-Encoding", "Connection", "Proxy-Authorization", "Upgrade", "A", "a b", "")
_VALUES = (
    "5",
    "05",
    "+5",
    "5, 5",
    "chunked",
    "identity, chunked",
    "close",
    "Content-Length, Transfer-Encoding",
    "x" * 400,
    " " * 3000,
    "\t" * 3000 + "\x01",
    "\x00",
    "é",
)
_ENDS = ("\r\n", "\n", "\r", "\r\n ", "\r\n\r\n")
_ENTRIES = (
    "10.1.0.0/16",
    "10.1.0.0/16:5432",
    "192.168.7.20:5432",
    "[fd00::20]:5432",
    "registry.lan:8080",
    "127.0.0.1:8088",
    "0.0.0.0/0",
    "::/0",
    "169.254.0.0/16:80",
    "[::ffff:127.0.0.1]:80",
    "10.1/16",
    "registry.lan.",
    "a" * 300,
)
_HOSTS = ("localhost", "127.0.0.1:4570", "[::1]:1", "b.localhost", "sts.us-west-2.amazonaws.com", "evil.example", "*")


_ROUTED = ("Authorization", "Accept", "Content-Type", "X-Amz-Target", "Host", "authorization")
_ROUTED_VALUES = (
    "AWS4-HMAC-SHA256 Credential=A/20260131/us-west-2/s3/aws4_request, SignedHeaders=host, Signature=0",
    "AWS4-HMAC-SHA256 Credential=A/20260131/us-west-2/sts/aws4_request, SignedHeaders=host, Signature=0",
    "AWS A:B",
    "text/html",
    "application/x-amz-json-1.1",
    "SageMaker.ListTrainingJobs",
)
_ROUTED_PATHS = ("/", "/console", "/console/x", "/clary/v1/health", "/clary/v1/", "/metrics", "/bucket/key", "//", "")
_ROUTED_QUERIES = (
    "",
    "Action=GetCallerIdentity",
    "X-Amz-Credential=A%2F20260131%2Fr%2Fs3%2Faws4_request",
    "X-Amz-Credential=A%2F20260131%2Fr%2Fsts%2Faws4_request",
    "AWSAccessKeyId=A",
    "list-type=2",
)


@contextmanager
def open_target() -> Iterator[Run]:
    """Yield the function that takes an input."""
    names = HostNames(["localhost", "box.lan", "*.box.lan"], ["*.us-west-2.amazonaws.com"])
    yield lambda data: _run(data, names)


def _run(data: bytes, names: HostNames) -> None:
    reader = ByteReader(data)
    kind = reader.below(6)
    began_s = time.process_time()
    if kind == 0:
        _run_proxy(reader)
    elif kind == 1:
        _run_answer(reader)
    elif kind == 2:
        _run_entries(reader)
    elif kind == 3:
        _run_host(reader, names)
    elif kind == 4:
        _run_matching(reader)
    else:
        _run_budget(reader)
    took_s = time.process_time() - began_s
    require(took_s < MAX_S, "a head takes long to read", seconds=took_s)


def _head(reader: ByteReader, first: str) -> bytes:
    lines = [first]
    for _ in range(reader.below(6)):
        separator = ":" if not reader.chance(8) else reader.text()
        lines.append(f"{reader.word(_NAMES)}{separator}{reader.word(_VALUES)}")
    text = "".join(line + ("\r\n" if not reader.chance(12) else reader.choose(_ENDS)) for line in lines)
    return (text + "\r\n").encode("utf-8", "surrogateescape") + (reader.chunk() if reader.chance(8) else b"")


def _run_proxy(reader: ByteReader) -> None:
    first = f"{reader.word(_METHODS)} {reader.word(_PLACES)}{reader.word(_VERSIONS)}"
    head = _head(reader, first)
    try:
        asked = read_request(head)
        length = body_length(asked)
    except BadHead as error:
        require(0 < len(str(error)) < 300, "a refusal says nothing, or too much", error=str(error))
        return
    require(1 <= asked.port <= 65535, "a port is none", asked=asked)
    require(asked.name.isascii() and not set(asked.name) & set("/@ \r\n\t\0\\"), "a name is none", asked=asked)
    require(length is None or 0 <= length < 10**18, "a length is none", asked=asked, length=length)
    _check_policy(asked, _entries(reader))
    if asked.is_tunnel:
        return
    written = request_head(asked)
    require(written.endswith(b"\r\n\r\n"), "a head has no end", head=head, written=written)
    require(written.count(b"\r\n\r\n") == 1, "a head holds another request", head=head, written=written)
    without_ends = written.replace(b"\r\n", b"")
    require(b"\r" not in without_ends and b"\n" not in without_ends, "a line is split", head=head, written=written)
    lines = written.decode("latin-1").split("\r\n")
    require(sum(line.lower().startswith("host:") for line in lines) == 1, "a head has not one host", written=written)
    passed = Asked(
        name=asked.name,
        port=asked.port,
        method=asked.method,
        path=asked.path,
        fields=tuple((name, value.strip()) for name, _, value in (line.partition(":") for line in lines[1:-2])),
    )
    require(body_length(passed) == length, "the target reads another body", head=head, written=written)


def _check_policy(asked: Asked, entries: tuple[Reachable, ...]) -> None:
    policy = EgressPolicy(has_internet=True, reachable=entries, own_ports=frozenset({443, 4570}))
    try:
        address = plain(asked.name)
    except ValueError:
        resolved = ["169.254.169.254", "127.0.0.1"]
    else:
        resolved = [str(address)]
    for text in resolved:
        decision = policy.judge(
            asked.name, asked.port, [text], is_own=lambda found: found.is_loopback, is_plain_http=not asked.is_tunnel
        )
        if decision.is_allowed:
            found = plain(text)
            require(not is_never(found), "an address of credentials is connected", asked=asked, entries=entries)
            is_ours = found.is_loopback and asked.port in policy.own_ports
            require(not is_ours, "a port of the service's own is connected", asked=asked, entries=entries)
        else:
            require(bool(decision.reason), "a refusal says nothing", asked=asked)


def _run_answer(reader: ByteReader) -> None:
    first = (
        f"{reader.word(('HTTP/1.1', 'HTTP/1.0', 'HTTP/2'))} {reader.word(('200 OK', '101', '100', '099', '20', ''))}"
    )
    head = _head(reader, first)
    try:
        status, written = answer_head(head)
    except BadHead:
        return
    require(100 <= status <= 999, "a status is none", head=head, status=status)
    require(written.count(b"\r\n\r\n") == 1 and written.endswith(b"\r\n\r\n"), "an answer is two", head=head)


def _entries(reader: ByteReader) -> tuple[Reachable, ...]:
    entries = []
    for _ in range(reader.below(3)):
        try:
            entries.append(parse_entry(reader.word(_ENTRIES)))
        except ValueError:
            continue
    return tuple(entries)


def _run_entries(reader: ByteReader) -> None:
    text = reader.word(_ENTRIES)
    try:
        entry = parse_entry(text)
    except ValueError as error:
        require(bool(str(error)), "a refusal says nothing", text=text)
        return
    require(bool(entry.name) != (entry.network is not None), "an entry is both, or neither", entry=entry)
    again = parse_entry(str(entry))
    require(again == entry, "an entry reads differently as it is shown", text=text, entry=entry, again=again)
    if entry.address is not None:
        require(not is_never(entry.address), "an address of credentials can be named", text=text)
    if entry.network is not None and entry.network.is_loopback:
        require(entry.port is not None and entry.address is not None, "this machine is named as a whole", text=text)
    for port in (entry.port or 1, 443):
        asked = Asked(name=entry.name or str(entry.network.network_address if entry.network else ""), port=port)
        _check_policy(asked, (entry,))


def _run_host(reader: ByteReader, names: HostNames) -> None:
    host = reader.word(_HOSTS)
    reason = names.why_refused(host)
    bucket = names.bucket_of(host)
    require(reason is None or (reason.isascii() and len(reason) < MAX_REFUSAL), "a refusal is too long", host=host)
    if bucket is not None:
        require(bucket != "" and reason is None, "a bucket is none", host=host, bucket=bucket)
    name = host.partition(":")[0].strip().rstrip(".").lower()
    if reason is None and not host.strip().startswith("["):
        ends = ("localhost", "box.lan", ".us-west-2.amazonaws.com")
        require(name.endswith(ends) or _is_address(name), "another name is answered", host=host)


def _run_matching(reader: ByteReader) -> None:
    """A head is for the console, for the service itself, or for S3, and never for two of them."""
    headers = CIMultiDict((reader.choose(_ROUTED), reader.word(_ROUTED_VALUES)) for _ in range(reader.below(5)))
    path, query = reader.word(_ROUTED_PATHS), reader.word(_ROUTED_QUERIES)
    request = cast(
        "web.BaseRequest",
        SimpleNamespace(
            method=reader.choose(("GET", "POST", "HEAD", "PUT", "")),
            raw_path=f"{path}?{query}" if query else path,
            headers=headers,
        ),
    )
    is_console, is_internal = matching.is_console(request), matching.is_internal(request)
    is_signed, looks_like_s3 = matching.is_signed_for_s3(request), matching.looks_like_s3(request)
    matching.is_health(request)
    require(not (is_console and is_internal), "two handlers take a request", request=request)
    require(not (is_console and "Authorization" in headers), "the console takes what is signed", request=request)
    if "Authorization" in headers:
        require(not looks_like_s3, "what is signed for another service looks like S3's", request=request)
        wanted = any(mark in headers["Authorization"] for mark in ("/s3/aws4_request", "AWS "))
        require(not is_signed or wanted, "what is signed for another service goes to S3", request=request)


def _run_budget(reader: ByteReader) -> None:
    """Grow and end bodies in any order: the total bound always holds, and no bytes stay held at the end."""
    total = reader.choose((0, 1, 100, 300_000))
    budget = BodyBudget(total)
    open_ones: list[tuple[str, BodyTicket]] = []
    for _ in range(reader.below(12)):
        if open_ones and reader.chance(3):
            open_ones.pop(reader.below(len(open_ones)))[1].__exit__(None, None, None)
            continue
        if not open_ones or reader.chance():
            client = reader.choose(("a", "b", "c"))
            open_ones.append((client, BodyTicket(budget, client)))
        open_ones[reader.below(len(open_ones))][1].grow(reader.choose((1, FREE_BYTES, FREE_BYTES + 1, 200_000)))
        require(0 <= budget.num_held_bytes <= total, "more is held than may be", held=budget.num_held_bytes)
    for _, ticket in open_ones:
        ticket.__exit__(None, None, None)
    require(budget.num_held_bytes == 0, "bytes stay held", held=budget.num_held_bytes)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True
