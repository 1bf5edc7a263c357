"""Test whether a service can be reached from this machine.

Where: `probing` calls it before a daemon is installed; `installation` before it replaces another service's daemon.
"""

from __future__ import annotations

import http.client
import ssl
import urllib.parse

CONNECT_LIMIT_S = 10.0
HEALTH_PATH = "/clary/v1/health"


def why_no_service(url: str, ca_pem: str) -> str:
    """Return "", or the reason why the service cannot be reached from this machine.

    Args:
        url: https://HOST:PORT.
        ca_pem: certificate of the service's authority.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "https" or not parts.hostname:
        return f"expected https://HOST:PORT, got {url[:100]!r}"
    try:
        context = ssl.create_default_context(cadata=ca_pem)
        line = http.client.HTTPSConnection(parts.hostname, parts.port or 443, timeout=CONNECT_LIMIT_S, context=context)
        try:
            line.request("GET", HEALTH_PATH)
            status = line.getresponse().status
        finally:
            line.close()
    except (OSError, ValueError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {error}"[:300]
    return "" if status == http.client.OK else f"it answers {status} to {HEALTH_PATH}"
