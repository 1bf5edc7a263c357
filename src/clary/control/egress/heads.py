"""Strict parser of the head of a request to the proxy.

Where: `connect_proxy` reads a head and parses it with this module; `forwarding` uses it to write the heads of http://
requests and of their answers. Pure.
Source: RFC 9110 (CONNECT, hop-by-hop fields), RFC 9112 (absolute form, message framing).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_PORT = 65535
HTTP_PORT = 80
MAX_LENGTH_DIGITS = 18

_HOST = r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]{1,254})"
_CONNECT = re.compile(rf"CONNECT {_HOST}:([0-9]{{1,5}}) HTTP/1\.[01]")
_ABSOLUTE = re.compile(
    rf"([A-Z]{{1,20}}) [Hh][Tt][Tt][Pp]://{_HOST}(?::([0-9]{{1,5}}))?([/?][\x21-\x7e]*)? HTTP/1\.[01]"
)
# No pattern can match the same blanks in two ways: otherwise the match of a head full of blanks would take hours
# (docs/adr/0049).
_FIELD = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\t\x20-\x7e\x80-\xff]*)")
_STATUS_LINE = re.compile(r"HTTP/1\.[01] ([1-9][0-9]{2})(?: [\t\x20-\x7e\x80-\xff]*)?")
# Hop-by-hop headers, which are not forwarded; the target is told by `Connection: close` that its answer is the last.
_HOP_BY_HOP = frozenset(
    {"connection", "proxy-connection", "keep-alive", "proxy-authorization", "proxy-authenticate", "te", "upgrade"}
)

Fields = list[tuple[str, str]]


class BadHead(Exception):
    """Raised for a head that is not a request that the proxy supports, or not an HTTP answer of a target."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A parsed request of a client."""

    name: str  # host in lower case, without brackets and without a dot at the end
    port: int
    method: str = "CONNECT"
    path: str = ""  # path of an http:// request, with its query
    fields: tuple[tuple[str, str], ...] = ()

    @property
    def is_tunnel(self) -> bool:
        """Whether the request is a CONNECT, whose bytes are forwarded unchanged."""
        return self.method == "CONNECT"

    @property
    def place(self) -> str:
        """Name and port, as in a URL."""
        return f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name}:{self.port}"


def read_request(head: bytes) -> Asked:
    """Parse the head of a request: CONNECT HOST:PORT, or any method with an http:// URL.

    Raises: BadHead naming the problem.
    """
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    tunnel = _CONNECT.fullmatch(first)
    if tunnel is not None:
        return Asked(name=_name(tunnel[1]), port=_port(tunnel[2]))
    plain = _ABSOLUTE.fullmatch(first)
    if plain is None or plain[1] == "CONNECT":
        raise BadHead("this proxy answers only CONNECT HOST:PORT and, for targets that it may reach, http:// requests")
    path = plain[4] or "/"
    return Asked(
        name=_name(plain[2]),
        port=_port(plain[3]) if plain[3] else HTTP_PORT,
        method=plain[1],
        path=path if path.startswith("/") else f"/{path}",
        fields=tuple(_fields(lines)),
    )


def request_head(asked: Asked) -> bytes:
    """Return the head for the target: in origin form, and with the request to close the connection after the answer."""
    host = asked.place if asked.port != HTTP_PORT else asked.place.rpartition(":")[0]
    fields = [("Host", host), *_end_to_end(asked.fields, but="host"), ("Connection", "close")]
    return _written(f"{asked.method} {asked.path} HTTP/1.1", fields)


def answer_head(head: bytes) -> tuple[int, bytes]:
    """Return the status of a target's answer, and the head for the client.

    Raises: BadHead for a head that is not an HTTP answer.
    """
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    status = _STATUS_LINE.fullmatch(first)
    if status is None:
        raise BadHead("the target does not speak HTTP")
    fields = _end_to_end(_fields(lines))
    is_last = not status[1].startswith("1")
    return int(status[1]), _written(first, [*fields, ("Connection", "close")] if is_last else fields)


def body_length(asked: Asked) -> int | None:
    """Return the number of bytes after the head of a request; None for a chunked body.

    Raises: BadHead for an ambiguous length, which another server could interpret differently.
    """
    lengths = [value for name, value in asked.fields if name.lower() == "content-length"]
    codings = [value.lower() for name, value in asked.fields if name.lower() == "transfer-encoding"]
    if codings:
        if codings != ["chunked"] or lengths:
            raise BadHead("a body needs either one Content-Length, or only Transfer-Encoding: chunked")
        return None
    if not lengths:
        return 0
    if len(lengths) > 1 or not re.fullmatch(rf"[0-9]{{1,{MAX_LENGTH_DIGITS}}}", lengths[0]):
        raise BadHead("a body needs exactly one Content-Length, which must be a number")
    return int(lengths[0])


def _name(text: str) -> str:
    name = text.strip("[]").lower()
    return name.removesuffix(".")


def _port(text: str) -> int:
    if not 1 <= int(text) <= MAX_PORT:
        raise BadHead(f"this proxy answers only CONNECT HOST:PORT; a port is a number from 1 to {MAX_PORT}")
    return int(text)


def _fields(lines: list[str]) -> Fields:
    fields = []
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise BadHead("a header line does not have the form `Name: value`")
        fields.append((field[1], field[2].strip(" \t")))
    return fields


def _end_to_end(fields: tuple[tuple[str, str], ...] | Fields, *, but: str = "") -> Fields:
    named = {
        token.strip().lower() for name, value in fields if name.lower() == "connection" for token in value.split(",")
    }
    # Framing headers stay even if Connection names them: without them the body would be read as the next message.
    dropped = (_HOP_BY_HOP | named | {but}) - {"content-length", "transfer-encoding"}
    return [(name, value) for name, value in fields if name.lower() not in dropped]


def _written(first: str, fields: Fields) -> bytes:
    return "\r\n".join([first, *(f"{name}: {value}" for name, value in fields), "", ""]).encode("latin-1")
