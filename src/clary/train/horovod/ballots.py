"""Ballots, which all ranks combine in one round, and messages with the news of a rank.

One all-reduce by bitwise AND shows all ranks whether any rank has news, whether all have the same news, and which known
tensors every rank has submitted. Messages follow only if the news differ.

    ballot   flags (1), digest of the news (8), its complement (8), one bit a known tensor
    message  JSON: [has joined, [[name, nameless, description...]...], [names of tensors submitted long ago...]]
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from clary.train._native.interface import Dtype
from clary.train.horovod.requests import Description, Reduction, Verb

_NO_NEWS = 1
_DIGEST_BYTES = 8
_HEADER_BYTES = 1 + 2 * _DIGEST_BYTES
_ALL_ONES = (1 << (8 * _DIGEST_BYTES)) - 1


@dataclass(frozen=True)
class News:
    """The message of one rank to all others in one round.

    Args:
        has_joined: whether this rank has no more data.
        announced: (name, whether it is nameless, description) of each tensor, in the order of submission.
        overdue: names of tensors that this rank has waited for too long; used for the warning alone.
    """

    has_joined: bool = False
    announced: tuple[tuple[str, bool, Description], ...] = ()
    overdue: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.has_joined or bool(self.announced) or bool(self.overdue)


@dataclass(frozen=True)
class Outcome:
    """The content of the combined ballots.

    Args:
        has_news: whether any rank has news.
        is_same: whether all ranks have equal news.
        ready_mask: bits of the known tensors that all ranks have submitted.
    """

    has_news: bool
    is_same: bool
    ready_mask: int


def encode_news(news: News) -> bytes:
    """Write a message."""
    rows = [
        [
            name,
            is_nameless,
            one.verb,
            one.dtype,
            one.shape,
            one.reduction,
            one.root,
            one.group,
            one.group_size,
            one.place,
            one.details,
        ]
        for name, is_nameless, one in news.announced
    ]
    return json.dumps([news.has_joined, rows, news.overdue], separators=(",", ":")).encode()


def decode_news(message: bytes) -> News:
    """Parse a message. Raises: ValueError, TypeError for bytes that `encode_news` does not write."""
    has_joined, rows, overdue = json.loads(message)
    announced = tuple(
        (
            str(name),
            bool(is_nameless),
            Description(
                Verb(verb),
                Dtype(dtype),
                tuple(shape),
                Reduction(reduction),
                root,
                group,
                group_size,
                place,
                tuple(details),
            ),
        )
        for name, is_nameless, verb, dtype, shape, reduction, root, group, group_size, place, details in rows
    )
    return News(bool(has_joined), announced, tuple(overdue))


def ballot_bytes(num_known: int) -> int:
    """Return the length in bytes of a ballot for `num_known` tensors."""
    return _HEADER_BYTES + (num_known + 7) // 8


def write_ballot(message: bytes, mask: int, num_known: int) -> bytearray:
    """Return this rank's ballot.

    Args:
        message: this rank's news, from `encode_news`; empty without news.
        mask: bit i is set if this rank has submitted the known tensor i.
        num_known: number of known tensors, equal on all ranks.
    """
    digest = hashlib.blake2b(message, digest_size=_DIGEST_BYTES).digest()
    ballot = bytearray(ballot_bytes(num_known))
    ballot[0] = 0 if message else _NO_NEWS
    ballot[1:_HEADER_BYTES] = digest + bytes(255 - byte for byte in digest)
    ballot[_HEADER_BYTES:] = mask.to_bytes(len(ballot) - _HEADER_BYTES, "little")
    return ballot


def read_ballot(combined: Sequence[int]) -> Outcome:
    """Parse the bitwise AND of all ranks' ballots."""
    combined = bytes(combined)
    digest = int.from_bytes(combined[1 : 1 + _DIGEST_BYTES], "little")
    complement = int.from_bytes(combined[1 + _DIGEST_BYTES : _HEADER_BYTES], "little")
    return Outcome(
        has_news=not combined[0] & _NO_NEWS,
        is_same=digest | complement == _ALL_ONES,  # a bit that differs between two ranks is 0 in both
        ready_mask=int.from_bytes(combined[_HEADER_BYTES:], "little"),
    )
