"""Mutual authentication of two ranks of a group, before a socket is trusted.

Where: `meeting` runs it on every socket between ranks, `tcp_store` on every connection to the store.

    connecting rank                                     accepting rank
      MAGIC, role, own rank, rank meant, nonce   ---->
                                                 <----  nonce
      HMAC over all of it, as "connecting"       ---->
                                                 <----  verdict, HMAC over all of it, as "accepting"

Both proofs bind the name of the group, its generation (a number that rank 0 draws for each attempt), both ranks, the
role and both nonces, so that no proof can be replayed, reflected or used for another socket. The accepting side sends
its proof only after it has verified the caller's. Messages have fixed sizes. Later bytes are not encrypted, so anyone
who can change packets between hosts is trusted.

The talks are generators that do no input or output themselves. A yielded int asks the caller to read that many bytes
and to pass them to the generator's `send`. Yielded bytes are for the caller to send to the other side. Source:
challenge-response with HMAC, RFC 2104; FIPS 198-1.
"""

from __future__ import annotations

import hmac
import secrets
import struct
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeVar

MAGIC = b"CLARYGR1"
NONCE_BYTES = 32
PROOF_BYTES = 32  # size of a SHA-256 digest
_GREETING = struct.Struct("<BII32s")  # role, own rank, rank meant, nonce
_ACCEPTED, _REFUSED = b"\x01", b"\x00"

Result = TypeVar("Result")
Talk = Generator[int | bytes, bytes, Result]


class Role(IntEnum):
    """The purpose of a socket between two ranks."""

    LANE = 0  # collectives between hosts
    SIDE = 1  # point-to-point messages and failures
    STORE = 2  # a client of `tcp_store`


class Refused(Exception):
    """The other side is no rank of the group, or not the expected rank; the text gives the reason."""


class SecretsDiffer(Refused):
    """The other side is a rank with another secret or of another attempt: a retry cannot help."""


@dataclass(frozen=True)
class Guest:
    """The rank that connected, and the role of its socket."""

    rank: int
    role: Role


@dataclass(frozen=True)
class Credentials:
    """The secret and names that members of a group have in common."""

    secret: bytes = field(repr=False)
    group: str
    generation: str

    def proof(self, side: bytes, guest: Guest, host_rank: int, nonces: bytes) -> bytes:
        """Return the proof of a handshake that only a member can make.

        Args:
            side: `connecting` or `accepting`, so that no proof can be reflected.
            guest: the connecting side.
            host_rank: rank of the accepting side.
            nonces: nonce of the connecting side, then of the accepting side.
        """
        words = (side, self.group.encode(), self.generation.encode(), nonces)
        coordinates = struct.pack("<BII", guest.role, guest.rank, host_rank)
        text = b"".join(struct.pack("<I", len(word)) + word for word in words) + coordinates
        return hmac.digest(self.secret, text, "sha256")


def introduce(credentials: Credentials, own: Guest, meant: int) -> Talk[None]:
    """Run the handshake as the connecting side, with rank `meant`.

    Args:
        own: this rank, and the purpose of the socket.
        meant: expected rank of the accepting side.
    Raises: SecretsDiffer if that rank refused our proof; Refused if its own proof is wrong.
    """
    nonce = secrets.token_bytes(NONCE_BYTES)
    yield MAGIC + _GREETING.pack(own.role, own.rank, meant, nonce)
    nonces = nonce + (yield NONCE_BYTES)
    yield credentials.proof(b"connecting", own, meant, nonces)
    answer = yield 1 + PROOF_BYTES
    if answer[:1] != _ACCEPTED:
        raise SecretsDiffer(f"rank {meant} did not take the proof of rank {own.rank}")
    if not hmac.compare_digest(answer[1:], credentials.proof(b"accepting", own, meant, nonces)):
        raise Refused(f"the process that answers there is not rank {meant} of group {credentials.group!r}")


def receive(credentials: Credentials, own_rank: int, is_expected: Callable[[Guest], bool]) -> Talk[Guest]:
    """Run the handshake as the accepting side; return the guest.

    Args:
        own_rank: this rank, which the guest must address.
        is_expected: returns whether a guest of this rank and role is still expected.
    Raises: Refused; a guest with a wrong proof is sent a refusal first.
    """
    if (yield len(MAGIC)) != MAGIC:
        raise Refused("no greeting of this protocol")
    number, rank, meant, nonce = _GREETING.unpack((yield _GREETING.size))
    try:
        guest = Guest(rank, Role(number))
    except ValueError:
        raise Refused(f"greeting with unknown role {number}") from None
    if meant != own_rank or not is_expected(guest):
        raise Refused(f"rank {rank} with role {guest.role.name.lower()} for rank {meant} is not expected here")
    own_nonce = secrets.token_bytes(NONCE_BYTES)
    yield own_nonce
    nonces = nonce + own_nonce
    proof = yield PROOF_BYTES
    if not hmac.compare_digest(proof, credentials.proof(b"connecting", guest, own_rank, nonces)):
        yield _REFUSED + bytes(PROOF_BYTES)
        raise SecretsDiffer(f"wrong secret, group or attempt (it says it is rank {rank})")
    yield _ACCEPTED + credentials.proof(b"accepting", guest, own_rank, nonces)
    return guest
