"""Requests that a client has signed, and the same after somebody on the way has changed them.

Where: both signature targets. The verifier must refuse a change of meaning and may accept a change of spelling; each
target says what the meaning of its requests is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from urllib.parse import quote, unquote

from clary.contract.launch_plan import Credentials
from fuzz.byte_reader import ByteReader

NOW = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)
SKEW_S = 300.0
KEY = Credentials(access_key_id="AKIDEXAMPLE", secret_access_key="wJalrXUtnFEMI-secret")
OTHER_KEY = Credentials(access_key_id="AKIDOTHER", secret_access_key="other-key-secret")
SECRETS = {key.access_key_id: key.secret_access_key for key in (KEY, OTHER_KEY)}

# Text that means the same, or nearly, in another spelling: what canonical forms are about.
_SPELLINGS: tuple[str, ...] = (
    "+",
    "%20",
    " ",
    "%2B",
    "%2b",
    "%2F",
    "/",
    "//",
    "/./",
    "/../",
    "*",
    "%2A",
    "%",
    "&",
    "=",
    "%3D",
    "%26",
)
_SPELLINGS += ("%00", "%C3%A9", "\udcff", "  ", ",", ";", "a", "A", "?", "#", "%25", "~", "%7E", "\u00a0", "\x0b")
_SPELLINGS += ("9" * 5000,)
_LONG = 60_000


@dataclass(frozen=True)
class Sent:
    """A request as it is on the wire."""

    method: str
    raw_path: str
    query: str
    headers: tuple[tuple[str, str], ...]
    body: bytes = b""

    def header(self, name: str) -> str:
        """Return the first header of a name; empty if the request has no such header."""
        return next((value for key, value in self.headers if key.lower() == name), "")


def collapsed(value: str) -> str:
    """Return a header's value as it is signed: without spaces around it, one where there are several."""
    return " ".join(word for word in value.replace("\t", " ").split(" ") if word)


def mutate(reader: ByteReader, sent: Sent, *, names: Sequence[str], words: Sequence[str]) -> Sent:
    """Return the request after up to three changes."""
    for _ in range(reader.below(4)):
        sent = _changed(reader, sent, names=names, words=words)
    return sent


def _changed(reader: ByteReader, sent: Sent, *, names: Sequence[str], words: Sequence[str]) -> Sent:
    kind = reader.below(12)
    if kind == 0:
        return replace(sent, method=reader.choose(("GET", "POST", "PUT", "DELETE", "get", "HEAD")))
    if kind == 1:
        return replace(sent, raw_path=_respelled(reader, sent.raw_path))
    if kind == 2:
        return replace(sent, query=_respelled(reader, sent.query))
    if kind == 3:
        parts = sent.query.split("&")
        parts.insert(reader.below(len(parts) + 1), reader.choose(parts) if reader.chance() else reader.word(words))
        return replace(sent, query="&".join(parts))
    if kind == 4:
        parts = sent.query.split("&")
        del parts[reader.below(len(parts))]
        return replace(sent, query="&".join(parts))
    if kind == 5:
        at = reader.below(len(sent.body) + 1)
        return replace(sent, body=sent.body[:at] + reader.chunk() + sent.body[at + reader.byte() :])
    if kind == 6 or not sent.headers:
        added = (reader.word(names), _without_breaks(reader.word(words)))
        at = reader.below(len(sent.headers) + 1)
        return replace(sent, headers=(*sent.headers[:at], added, *sent.headers[at:]))
    at = reader.below(len(sent.headers))
    name, value = sent.headers[at]
    before, after = sent.headers[:at], sent.headers[at + 1 :]
    if kind == 7:
        return replace(sent, headers=(*before, *after))
    if kind == 8:
        return replace(sent, headers=(*before, (name, value), (name, value), *after))
    if kind == 9:
        name = reader.choose((name.upper(), name.title(), reader.choose(names)))
        return replace(sent, headers=(*before, (name, value), *after))
    if kind == 10:
        return replace(sent, headers=(*before, (name, _without_breaks(reader.word(words))), *after))
    return replace(sent, headers=(*before, (name, _without_breaks(_respelled(reader, value))), *after))


def _respelled(reader: ByteReader, text: str) -> str:
    at = reader.below(len(text) + 1)
    kind = reader.below(6)
    if kind == 0:
        return text[:at] + reader.choose(_SPELLINGS) + text[at:]
    if kind == 1:
        return text[:at] + reader.choose(_SPELLINGS) + text[at + 1 :]
    if kind == 2:
        return text[:at] + text[at + reader.byte() :]
    if kind == 3:
        return text[:at] + reader.text() + text[at:]
    if kind == 4:
        return text[:at] + quote(text[at : at + 1], safe="", errors="surrogateescape") + text[at + 1 :]
    return text[:at] + unquote(text[at : at + 3], errors="surrogateescape") + text[at + 3 :]


def _without_breaks(value: str) -> str:
    """Return a header's value as an HTTP library lets it through: no line breaks, no NUL."""
    return value.replace("\n", " ").replace("\r", " ").replace("\0", " ")[:_LONG]
