"""Signed cookies of console sessions, and the one-time codes of `clary console`.

Where: `sign_in` begins and ends sessions, `access` reads the cookie of each request. A cookie contains all facts of its
session, so sessions survive a restart of the service. Only sessions that were ended early are stored, in a file of the
state folder.

A cookie: BASE64(JSON of id, user, end, boot and began) . BASE64(HMAC-SHA256 of that with the key of the state folder).
Within one boot of the machine a session's end is checked by monotonic time, even if the clock is set; after another
boot, by wall time.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import logging
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clary.base.clock import Clock, boot_id
from clary.base.whole_files import replace_durably

SESSION_S = 12 * 3600
CODE_S = 120.0  # the browser opens right after the code is created
MAX_CODES = 100  # unused codes at once; the oldest is dropped
MAX_COOKIE_LENGTH = 1024  # real cookies have about 300 characters
MAX_REVOKED = 1000  # remembered revocations; the oldest is dropped, not the first to end: the clock may be set back
OWNER = "owner"  # the holder of the admin token; a state folder has no other users

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Session:
    """Session of a user, signed in to the console."""

    session_id: str
    user: str
    ends_at_s: int  # seconds since 1970
    csrf: str  # value that pages send with each change; other sites cannot guess it

    @property
    def is_admin(self) -> bool:
        """Whether this user may do everything."""
        return self.user == OWNER


class Sessions:
    """Makes, reads and revokes sessions.

    Args:
        key: secret key of the state folder, which signs sessions.
        revoked_path: file of revoked sessions, which may be missing.
        clock: decides when sessions and codes end.
    """

    def __init__(self, key: bytes, revoked_path: Path, clock: Clock) -> None:
        self._key = key
        self._revoked_path = revoked_path
        self._clock = clock
        self._revoked = _read_revoked(revoked_path)
        self._revoking = threading.Lock()
        self._codes: dict[str, float] = {}  # digest of a code -> monotonic time of its end

    def cookie_name(self, *, is_secure: bool) -> str:
        """Return the name of this state folder's cookies.

        Browsers store cookies by host, not by port, so two services of one machine need two names. A browser accepts a
        name that begins with `__Host-` only over TLS, and only from exactly this host.
        """
        name = f"clary_session_{self._sign(b'name', b'')[:6].hex()}"
        return f"__Host-{name}" if is_secure else name

    def begin(self) -> tuple[Session, str]:
        """Return a new session of the owner, and its cookie."""
        facts = {
            "id": secrets.token_urlsafe(16),
            "user": OWNER,
            "end": int(self._now_s() + SESSION_S),
            "boot": boot_id(),
            "began": self._clock.monotonic(),
        }
        payload = json.dumps(facts, separators=(",", ":")).encode()
        cookie = f"{_encode(payload)}.{_encode(self._sign(b'cookie', payload))}"
        session = self.read(cookie)
        assert session is not None, "a new cookie is valid"
        return session, cookie

    def read(self, cookie: str) -> Session | None:
        """Return the session of a cookie; None for a forged, damaged, expired or revoked cookie."""
        if len(cookie) > MAX_COOKIE_LENGTH:
            return None
        left, _, right = cookie.partition(".")
        try:
            payload, signature = _decode(left), _decode(right)
        except (UnicodeEncodeError, binascii.Error, ValueError):
            return None
        if not hmac.compare_digest(signature, self._sign(b"cookie", payload)):
            return None
        facts = json.loads(payload)
        if self._left_s(facts) <= 0 or facts["id"] in self._revoked:
            return None
        csrf = _encode(self._sign(b"csrf", facts["id"].encode()))
        return Session(session_id=facts["id"], user=facts["user"], ends_at_s=facts["end"], csrf=csrf)

    def revoke(self, session: Session) -> None:
        """End a session; it stays ended after a restart or power cut, unless the file cannot be written.

        Waits for the disk; call it in a thread.
        """
        with self._revoking:
            self._revoked[session.session_id] = session.ends_at_s
            while len(self._revoked) > MAX_REVOKED:
                del self._revoked[next(iter(self._revoked))]
            self._store_revoked()

    def _store_revoked(self) -> None:
        try:
            replace_durably(self._revoked_path, json.dumps(self._revoked).encode())
        except OSError as error:  # the session stays ended until the service restarts
            _log.warning("cannot write %s: %s; ended sessions are valid after a restart", self._revoked_path, error)

    def new_code(self) -> str:
        """Return a code that opens one session within CODE_S."""
        now_s = self._clock.monotonic()
        self._codes = {digest: end for digest, end in self._codes.items() if end > now_s}
        while len(self._codes) >= MAX_CODES:
            del self._codes[next(iter(self._codes))]
        code = secrets.token_urlsafe(24)
        self._codes[_digest(code)] = now_s + CODE_S
        return code

    def redeem(self, code: str) -> bool:
        """Use up a code, and return whether it was valid: created by this service, not expired, not used before."""
        # Looked up by digest, so that the time of the search reveals nothing about existing codes.
        end = self._codes.pop(_digest(code), None)
        return end is not None and end > self._clock.monotonic()

    def _sign(self, purpose: bytes, payload: bytes) -> bytes:
        return hmac.new(self._key, purpose + b":" + payload, hashlib.sha256).digest()

    def _left_s(self, facts: Mapping[str, Any]) -> float:
        """Return the seconds until a session ends."""
        if boot_id() and facts.get("boot") == boot_id():
            return float(facts["began"]) + SESSION_S - self._clock.monotonic()
        return float(facts["end"]) - self._now_s()

    def _now_s(self) -> float:
        return self._clock.now().timestamp()


def _read_revoked(path: Path) -> dict[str, int]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {str(key): int(end) for key, end in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        _log.warning("cannot read %s: %s; sessions ended earlier are valid until they expire", path, error)
        return {}


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _decode(text: str) -> bytes:
    data = text.encode("ascii")
    decoded = base64.b64decode(data + b"=" * (-len(data) % 4), altchars=b"-_", validate=True)
    if _encode(decoded) != text:  # only one encoding of a digest is accepted
        raise ValueError("not encoded as by `_encode`")
    return decoded


def _digest(code: str) -> str:
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).hexdigest()
