"""Records about ranks in the store, and the layout of hosts that follows from all records.

Where: `group.connect_group` publishes one record per rank under GROUP/RANK, and rank 0 one `Root` under GROUP/root, as
JSON. Membership is proved by `handshake`, not by a record; records are validated so that errors name their cause.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

from clary.base.errors import ContractError
from clary.base.plain import from_plain, to_plain
from clary.train._native.errors import BootstrapError

VERSION = 1
MAX_RECORD_BYTES = 8192
_TERM_VARIABLES = {
    "core": "CLARY_COLLECTIVE_CORE, or whether the compiled library was built there",
    "slot_bytes": "CLARY_COLLECTIVE_SLOT_BYTES",
    "link_latency_s": "CLARY_COLLECTIVE_LINK",
    "link_bytes_per_s": "CLARY_COLLECTIVE_LINK",
    "algorithm": "CLARY_COLLECTIVE_ALGORITHM",
    "size": "the number of ranks that the program was started with",
    "version": "the version of Clary",
}


@dataclass(frozen=True)
class Terms:
    """The settings and the version that must be equal on all ranks."""

    size: int
    core: str
    slot_bytes: int
    link_latency_s: float
    link_bytes_per_s: float
    algorithm: str
    version: int = VERSION


@dataclass(frozen=True)
class RankRecord:
    """One rank: its identity, and the addresses on which it listens.

    Args:
        identity: text that is equal for ranks that can share memory (`hosts.host_identity`).
        unix_name: name of its abstract Unix socket without the leading zero byte; "" if it has no such socket.
        generation: generation of its attempt.
        farewell: reason for which this rank gave up; "" otherwise.
    """

    rank: int
    identity: str
    host: str
    pid: int
    address: str
    port: int
    unix_name: str
    generation: str
    terms: Terms
    farewell: str = ""

    @property
    def in_words(self) -> str:
        """The record's rank, host and address, for messages."""
        return f"rank {self.rank} on {self.host} ({self.address} port {self.port}, pid {self.pid})"


@dataclass(frozen=True)
class Root:
    """Rank 0's decisions for all ranks. `secret` is "" if the job has a secret of its own."""

    generation: str
    secret: str


@dataclass(frozen=True)
class Layout:
    """The hosts of ranks; `host_of_rank` numbers hosts in the order of their lowest ranks."""

    host_of_rank: tuple[int, ...]
    host_names: tuple[str, ...]

    def ranks_of(self, host: int) -> tuple[int, ...]:
        """Return the ranks on a host, ascending; the first is its leader."""
        return tuple(rank for rank, of in enumerate(self.host_of_rank) if of == host)

    def describe(self, rank: int) -> str:
        """Name a rank for messages."""
        return f"rank {rank} on {self.host_names[self.host_of_rank[rank]]}"


Document = TypeVar("Document", RankRecord, Root)


def layout_of(records: Sequence[RankRecord]) -> Layout:
    """Return the layout of `records`, which are in rank order."""
    hosts: dict[str, int] = {}
    names: list[str] = []
    host_of_rank = []
    for record in records:
        if record.identity not in hosts:
            hosts[record.identity] = len(hosts)
            names.append(record.host)
        host_of_rank.append(hosts[record.identity])
    return Layout(tuple(host_of_rank), tuple(names))


def check_agreement(group: str, records: Mapping[int, RankRecord], generation: str) -> None:
    """Refuse ranks with different settings, or of an earlier attempt.

    Args:
        records: rank -> its record; some may be missing.

    Raises: BootstrapError naming the ranks, the setting and both values; or with the farewell of a rank that gave up.
    """
    for place, record in sorted(records.items()):
        if record.generation != generation or record.rank != place:
            raise BootstrapError(
                f"group {group!r}: the record of rank {place} ({record.in_words}) belongs to another attempt: give "
                f"every attempt a group name or a store of its own",
                culprit=place,
            )
        if record.farewell:
            raise BootstrapError(f"group {group!r}: {record.in_words} gave up: {record.farewell}", culprit=place)
    for term in fields(Terms):
        values = {rank: getattr(record.terms, term.name) for rank, record in sorted(records.items())}
        common, _ = Counter(values.values()).most_common(1)[0]
        odd = next((rank for rank, value in values.items() if value != common), None)
        if odd is not None:
            other = next(rank for rank, value in values.items() if value == common)
            raise BootstrapError(
                f"group {group!r}: ranks differ in {term.name}: {values[odd]!r} on {records[odd].in_words}, "
                f"{common!r} on {records[other].in_words}. Make it equal on all: {_TERM_VARIABLES[term.name]}",
                culprit=odd,
                retryable=False,
            )


def encode(document: RankRecord | Root) -> bytes:
    """Return the stored form."""
    return json.dumps(to_plain(document)).encode()


def decode(kind: type[Document], value: bytes, *, key: str) -> Document:
    """Parse a stored `RankRecord` or `Root`.

    Args:
        kind: `RankRecord` or `Root`.
        value: JSON, MAX_RECORD_BYTES at most.
        key: for the error's text.
    Raises: BootstrapError naming the key and the defect.
    """
    if len(value) > MAX_RECORD_BYTES:
        raise BootstrapError(f"key {key!r} of the store holds {len(value)} bytes, at most {MAX_RECORD_BYTES} expected")
    try:
        return from_plain(kind, json.loads(value))
    except (ValueError, RecursionError, ContractError) as error:  # not UTF-8, not JSON, too deep, or with wrong fields
        raise BootstrapError(
            f"key {key!r} of the store holds no {kind.__name__} of version {VERSION}: {error}. Check that "
            "all ranks run the same version of Clary and that nothing else uses these keys.",
            retryable=False,
        ) from error
