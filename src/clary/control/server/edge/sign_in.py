"""Sign-in to the console, and sign-out.

Where: `route_table` names these functions; `authorization` has checked cookie and origin before the call, and for
DELETE also the CSRF value.

    POST   /clary/v1/session       {"token": "..."} or {"code": "..."} -> Set-Cookie; {"user", "is_admin", "csrf", ...}
    GET    /clary/v1/session       -> likewise without a new cookie, or 401
    DELETE /clary/v1/session       -> ends the session
    POST   /clary/v1/session-code  -> {"code", "valid_s"}: a code for one session; admin token only (`clary console`)

The token is the admin token of the state folder. The browser gets a code in the fragment of a URL, which is never sent
to a server or proxy.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from typing import Any

from clary.base.errors import WireError
from clary.control.server.edge.guesses import GuessLimiter, too_many_guesses
from clary.control.server.edge.internal_http import json_answer, read_json
from clary.control.server.edge.sessions import CODE_S, SESSION_S, Session, Sessions
from clary.control.wire.messages import HttpRequest, HttpResponse

PATH = "/clary/v1/session"
MAX_SECRET_LENGTH = 4096

_log = logging.getLogger(__name__)


class SignIn:
    """Begins and ends sessions.

    Args:
        sessions: makes and ends sessions.
        admin_token: token with which the owner signs in.
        guesses: counts wrong tokens and codes.
    """

    def __init__(self, sessions: Sessions, *, admin_token: str, guesses: GuessLimiter) -> None:
        self._sessions = sessions
        self._admin_token = admin_token
        self._guesses = guesses

    async def begin(self, request: HttpRequest) -> HttpResponse:
        """Begin a session for a right token or code. Raises: WireError 400, 403, 429."""
        kind, secret = _secret_of(read_json(request))
        # A right token is accepted however many wrong ones came before: programs of jobs may guess tokens from the
        # owner's address.
        if kind == "code":
            is_right = self._sessions.redeem(secret)
        else:
            given = secret.strip().encode("utf-8", "surrogatepass")
            is_right = hmac.compare_digest(given, self._admin_token.encode())
        if not is_right:
            wrong = self._guesses.note_wrong(request.remote)
            await asyncio.sleep(wrong.delay_s)
            if wrong.retry_after_s:
                raise too_many_guesses(request.remote, wrong)
            _log.warning("a wrong token or code for the console came from %s", request.remote)
            raise WireError(
                "AccessDenied",
                "this token or code does not open this service: `clary console` on its machine prints a fresh link",
                http_status=403,
            )
        session, cookie = self._sessions.begin()
        answer = json_answer(_facts(session))
        answer.headers.append(self._set_cookie(cookie, is_secure=request.is_secure, max_age_s=SESSION_S))
        return answer

    async def end(self, request: HttpRequest, session: Session | None) -> HttpResponse:
        """End the session, if there is one, and delete its cookie."""
        if session is not None:
            await asyncio.to_thread(self._sessions.revoke, session)
        answer = json_answer({})
        answer.headers.append(self._set_cookie("", is_secure=request.is_secure, max_age_s=0))
        return answer

    def facts(self, session: Session | None) -> dict[str, Any]:
        """Return a session's user, rights, CSRF value and end. Raises: WireError 401 without a session."""
        if session is None:
            raise not_signed_in()
        return _facts(session)

    def new_code(self) -> dict[str, Any]:
        """Return a code that opens one session.

        A session may not create codes, because a stolen session must not be prolonged.
        """
        return {"code": self._sessions.new_code(), "valid_s": CODE_S}

    def _set_cookie(self, value: str, *, is_secure: bool, max_age_s: int) -> tuple[str, str]:
        name = self._sessions.cookie_name(is_secure=is_secure)
        secure = "; Secure" if is_secure else ""
        return ("Set-Cookie", f"{name}={value}; HttpOnly; SameSite=Strict; Path=/; Max-Age={max_age_s}{secure}")


def not_signed_in() -> WireError:
    """Return the error for a request with neither a session nor a token."""
    return WireError("NotSignedIn", "sign in first: `clary console` prints a link", http_status=401)


def cookie_of(request: HttpRequest, cookie_name: str) -> str | None:
    """Return the cookie of this name, or None if it is absent or repeated."""
    found = []
    # Several Cookie headers are joined with commas, which the service's cookies never contain.
    for pair in (request.header("cookie") or "").replace(",", ";").split(";"):
        name, _, value = pair.strip().partition("=")
        if name == cookie_name:
            found.append(value)
    return found[0] if len(found) == 1 else None


def _secret_of(body: Any) -> tuple[str, str]:
    """Return `token` or `code`, and its value. Raises: WireError 400 for a body without either."""
    document = body if isinstance(body, dict) else {}
    kind = "token" if "token" in document else "code"
    secret = document.get(kind)
    if not isinstance(secret, str) or not secret or len(secret) > MAX_SECRET_LENGTH:
        raise WireError("ValidationException", 'expected {"token": "..."} or {"code": "..."}')
    return kind, secret


def _facts(session: Session) -> dict[str, Any]:
    return {
        "user": session.user,
        "is_admin": session.is_admin,
        "csrf": session.csrf,
        "ends_at_ms": session.ends_at_s * 1000,
    }
