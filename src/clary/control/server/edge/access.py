"""Identification of people: by token from the command line, or by the console's cookie from a browser.

Where: `authorization` calls it for each request to a route of the owner, or of anybody. Token and cookie permit the
same routes, but one-time codes need the token. The code behind the routes does not handle cookies.

Browsers also send cookies with requests caused by other sites. So a change (any method but GET and HEAD) needs two
proofs that a page of another origin cannot give: the session's CSRF value in a header, and the service's own origin.
"""

from __future__ import annotations

import hmac
from urllib.parse import urlsplit

from clary.base.errors import WireError
from clary.control.server.edge.internal_http import bearer_token
from clary.control.server.edge.sessions import Session, Sessions
from clary.control.server.edge.sign_in import cookie_of, not_signed_in
from clary.control.wire.messages import HttpRequest

CSRF_HEADER = "X-Clary-Csrf"
_SAFE_METHODS = ("GET", "HEAD")


class Access:
    """Checks cookies of sessions, their CSRF values, and the admin token.

    Args:
        sessions: knows the valid sessions.
        admin_token: token that permits everything that a session permits.
    """

    def __init__(self, sessions: Sessions, *, admin_token: str) -> None:
        self._sessions = sessions
        self._admin_token = admin_token

    def session_of(self, request: HttpRequest) -> Session | None:
        """Return the session of a request; None without a valid cookie, and for a request with an Authorization header.

        Raises: WireError 403 for a change from a page of another origin, and for a change by cookie without an origin.
        """
        if request.header("authorization") is not None:
            # a page of another origin cannot send this header without a preflight; the caller checks the token
            return None
        cookie = cookie_of(request, self._sessions.cookie_name(is_secure=request.is_secure))
        if request.method not in _SAFE_METHODS:
            _require_own_origin(request, must_say=cookie is not None)
        return None if cookie is None else self._sessions.read(cookie)

    def let_in(self, request: HttpRequest) -> Session | None:
        """Return the session of the owner's request; None for a request with a token.

        Raises: WireError 401 for a client that is not signed in; 403 for a wrong token, and for a change without its
            CSRF value or from another origin.
        """
        if request.header("authorization") is not None:
            self.require_token(request)
            return None
        session = self.session_of(request)
        if session is None:
            raise not_signed_in()
        require_csrf(request, session)
        return session

    def require_token(self, request: HttpRequest) -> None:
        """Raise WireError 403 unless a request has the admin token."""
        if not hmac.compare_digest(bearer_token(request).encode(), self._admin_token.encode()):
            raise WireError("AccessDenied", "this service does not accept the token", http_status=403)


def require_csrf(request: HttpRequest, session: Session) -> None:
    """Raise WireError 403 if a change lacks the CSRF value of its session."""
    if request.method in _SAFE_METHODS:
        return
    given = request.header(CSRF_HEADER) or ""
    if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), session.csrf.encode()):
        message = f"a change by cookie needs the session's `csrf` in {CSRF_HEADER}; GET /clary/v1/session has it"
        raise WireError("AccessDenied", message, http_status=403)


def _require_own_origin(request: HttpRequest, *, must_say: bool) -> None:
    site, origin = request.header("sec-fetch-site"), request.header("origin")
    is_ours = site in (None, "same-origin") and (origin is None or _host_of(origin) == request.header("host"))
    if is_ours and (not must_say or site is not None or origin is not None):
        return
    from_where = (origin or site or "one that hides its origin")[:80]
    message = f"a change by cookie is taken from a page of this service alone; this one came from {from_where}"
    raise WireError("AccessDenied", message, http_status=403)


def _host_of(origin: str) -> str | None:
    """Return host and port of an origin; None for `null` and other texts without a host."""
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None
