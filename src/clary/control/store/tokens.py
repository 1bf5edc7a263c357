"""Page tokens: opaque texts; each is accepted only for the query that it was made for.

Where: the paged queries of `Store` and its parts, of `LogStore` and of some services put the position of the next page
into a token. A token contains the readable position and a keyed digest of position and query, so that a forged or
damaged token, or a token of another query, is refused instead of silently skipping items.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from typing import Any

from clary.control.store.errors import BadToken

_DIGEST_BYTES = 16  # long enough against guesses, short enough for a URL


def make_token(key: bytes, *, query: Any, position: list[Any]) -> str:
    """Return the token that continues `query` after `position`; both must be JSON-serialisable.

    Args:
        key: the store's key; a token made with another key is refused.
        query: identity of the query, without the limit of the page.
        position: position of the last item of the page.
    """
    payload = json.dumps(position, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(_digest(key, query, payload) + payload).decode("ascii")


def read_token(key: bytes, token: str, *, query: Any) -> list[Any]:
    """Return the position that `make_token` put into `token` for the same query.

    Args:
        key: as for `make_token`.
        token: token from a client.
        query: as for `make_token`.
    Raises: BadToken if the token is forged, damaged, or belongs to another query.
    """
    try:
        sealed = base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True)
    except (UnicodeEncodeError, binascii.Error) as error:
        raise _refusal(token) from error
    payload = sealed[_DIGEST_BYTES:]
    if not hmac.compare_digest(sealed[:_DIGEST_BYTES], _digest(key, query, payload)):
        raise _refusal(token)
    position: list[Any] = json.loads(payload)
    return position


def _digest(key: bytes, query: Any, payload: bytes) -> bytes:
    about = json.dumps(query, sort_keys=True, separators=(",", ":")).encode()
    return hmac.new(key, len(about).to_bytes(8, "big") + about + payload, hashlib.sha256).digest()[:_DIGEST_BYTES]


def _refusal(token: str) -> BadToken:
    return BadToken(
        f"the page token {token[:60]!r} was not given out for this query: expected the token of this query's last "
        f"page, unchanged; ask again without a token"
    )
