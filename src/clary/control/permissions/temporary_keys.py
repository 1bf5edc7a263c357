"""Expiring keys that STS makes for the owner; a key is verified without stored state.

Where: `services.sts` makes keys; verifiers of signatures call `judge` if a request has a session token. Pure except for
the random name of a new key. No key is stored: token and secret are derived from the key's name, its expiration, its
holder and the service's master key. So a key stays valid after a restart, until it expires, and only together with its
token. The holder is the role and the session that AssumeRole was asked for: GetCallerIdentity returns it, and it has
no rights. Temporary keys permit what the owner's key permits, except that they cannot make other keys.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime

PREFIX = "CLARYTEMP"
_NAME_BYTES = 10
_END_BYTES = 8
_SIZE = _END_BYTES + hashlib.sha256().digest_size


@dataclass(frozen=True, kw_only=True)
class TemporaryKey:
    """Credentials with which a client signs until they expire."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(repr=False)
    expires_at: datetime


@dataclass(frozen=True)
class TokenVerdict:
    """Verdict on a session token: the key's secret, or whether the token is expired or unknown."""

    secret: str = field(default="", repr=False)
    has_expired: bool = False
    holder: str = ""  # ROLE/SESSION of a valid or expired key of a role


class TemporaryKeys:
    """Makes keys and verifies them.

    Args:
        master: secret from which all keys are derived; never shown.
    """

    def __init__(self, master: bytes) -> None:
        self._master = master

    @classmethod
    def forgotten(cls) -> TemporaryKeys:
        """Return an object with a random master key, whose keys are valid in this process only."""
        return cls(secrets.token_bytes())

    def make(self, expires_at: datetime, *, holder: str = "") -> TemporaryKey:
        """Return a new key that is valid until `expires_at`, rounded down to whole seconds.

        Args:
            expires_at: aware time.
            holder: ROLE/SESSION; empty for the owner's own session.
        """
        end_s, held = int(expires_at.timestamp()), holder.encode()
        name = PREFIX + base64.b32encode(secrets.token_bytes(_NAME_BYTES)).decode()
        end = end_s.to_bytes(_END_BYTES, "big")
        token = base64.urlsafe_b64encode(end + self._derive("token", name, end_s, held) + held).decode()
        return TemporaryKey(
            access_key_id=name,
            secret_access_key=self._derive("secret", name, end_s, held).hex(),
            session_token=token,
            expires_at=datetime.fromtimestamp(end_s, UTC),
        )

    def judge(self, access_key_id: str, session_token: str, *, now: datetime) -> TokenVerdict:
        """Return the verdict on a key and its session token, with the secret if the token is valid for the key.

        Args:
            access_key_id: access key id of the request.
            session_token: from the client, untrusted; URL-safe base64.
            now: current time, with a time zone.
        Returns: a verdict without a secret for a token that is malformed, belongs to another key, or has expired.
        """
        try:
            content = base64.b64decode(session_token, altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return TokenVerdict()
        if len(content) < _SIZE or not access_key_id.startswith(PREFIX):
            return TokenVerdict()
        end_s, proof, held = int.from_bytes(content[:_END_BYTES], "big"), content[_END_BYTES:_SIZE], content[_SIZE:]
        if not hmac.compare_digest(proof, self._derive("token", access_key_id, end_s, held)):
            return TokenVerdict()
        holder = held.decode()  # the proof covers it, so that it is as `make` encoded it
        if now.timestamp() >= end_s:
            return TokenVerdict(has_expired=True, holder=holder)
        return TokenVerdict(secret=self._derive("secret", access_key_id, end_s, held).hex(), holder=holder)

    def _derive(self, kind: str, name: str, end_s: int, holder: bytes) -> bytes:
        text = f"{kind}\0{name}\0{end_s}".encode("utf-8", "surrogateescape")
        # Without a holder the text is the one of earlier releases, whose keys stay valid over an update.
        return hmac.digest(self._master, text + b"\0" + holder if holder else text, "sha256")
