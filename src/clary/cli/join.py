"""`clary join`: make this machine a box of a service that cannot reach it, because of NAT or a firewall."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from clary.base.errors import ClaryError, Fault, WireError
from clary.cli.box_admission import checked_probe, fingerprint
from clary.cli.box_words import shape_words
from clary.cli.remote_python import Place, ask_node, this_python
from clary.cli.tables import visible
from clary.contract.box_protocol import BOX_NAME

REQUEST_TIMEOUT_S = 30.0
MAX_ANSWER_BYTES = 256 * 1024
_FINGERPRINT = re.compile(r"(?:sha256:)?((?:[0-9a-fA-F]{2}:?){31}[0-9a-fA-F]{2})")


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("join", help="make this machine a box of a service elsewhere (see: clary hosts token)")
    parser.add_argument("url", metavar="URL", help="https://HOST:PORT of the service")
    parser.add_argument("--token-file", required=True, metavar="FILE", help="with what `clary hosts token` has printed")
    parser.add_argument("--name", help="of the box there; this machine's name by default")
    parser.add_argument(
        "--ca", metavar="FILE|SHA256", help="certificate of the service's authority, or its fingerprint"
    )
    parser.add_argument("--scratch", default="", metavar="DIR", help="folder for the files of running hosts")
    parser.add_argument("--python", default="", metavar="PY", help="interpreter for the daemon, if not this one")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Check the service's fingerprint, redeem the token, install the daemon here. Raises: ClaryError, WireError."""
    name = options.name or socket.gethostname().replace("_", "-")
    if not BOX_NAME.fullmatch(name):
        raise ClaryError(f"{name!a} is no name for a box: letters, digits, - and .; use --name", fault=Fault.USER)
    pinned, token = _read_token(options.token_file)
    url = options.url.rstrip("/")
    ca_pem = _authority(url, options.ca, pinned)
    place = Place(python=options.python or this_python())
    scratch = os.path.abspath(options.scratch) if options.scratch else ""
    found = ask_node(place, "probe", {"url": url, "ca_pem": ca_pem, "scratch": scratch})
    new = checked_probe(found, name, url)
    admission = _request(url, ca_pem, "POST", "/clary/v1/join", token=token, document=new)
    ask_node(
        place,
        "install",
        {"name": name, "url": url, "ca_pem": ca_pem, "token": str(admission["token"]), "scratch": scratch},
    )
    if options.json:
        print(json.dumps({"name": name, "url": url, "facts": new["facts"]}, indent=2))
        return 0
    print(f"{name}   has joined   {visible(shape_words(new['facts']))}")
    if str(new["facts"]["restarts"]).startswith("nothing"):
        print("after a reboot, join again with a new token")
    return 0


def _read_token(path: str) -> tuple[str, str]:
    """Return the fingerprint and the token in a file; the fingerprint is empty if the file holds only a token."""
    try:
        words = Path(path).read_text(encoding="ascii").split()
    except (OSError, ValueError) as error:
        raise ClaryError(f"{path}: cannot be read: {error}", fault=Fault.USER) from error
    if len(words) != 1:
        raise ClaryError(f"{path}: expected the one line that `clary hosts token` prints", fault=Fault.USER)
    pinned, _, token = words[0].rpartition(".")
    return pinned, token


def _authority(url: str, wanted: str | None, pinned: str) -> str:
    """Return the certificate of the service's authority: from a file, or from the service, checked by fingerprint."""
    if wanted and not _FINGERPRINT.fullmatch(wanted):
        try:
            ca_pem = Path(wanted).read_text(encoding="ascii")
            fingerprint(ca_pem)
        except (OSError, ValueError) as error:
            raise ClaryError(f"--ca {wanted}: holds no certificate: {error}", fault=Fault.USER) from error
        return ca_pem
    expected = (wanted or pinned).lower().removeprefix("sha256:").replace(":", "")
    if not expected:
        raise ClaryError(
            "the token names no fingerprint: say whom to trust with --ca, a file or a SHA-256", fault=Fault.USER
        )
    # This connection carries no secret, and the answer is compared with the fingerprint.
    ca_pem = str(_request(url, "", "GET", "/clary/v1/authority").get("ca_pem"))
    try:
        got = fingerprint(ca_pem)
    except ValueError:
        got = "none"
    if got != expected:
        raise ClaryError(
            f"{url} is not the service that the token is for: its authority has fingerprint {got}, expected "
            f"{expected}; do not go on",
            fault=Fault.USER,
        )
    return ca_pem


def _request(
    url: str, ca_pem: str, method: str, path: str, *, token: str = "", document: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Send one request; without `ca_pem` the certificate is not checked and no token may be sent."""
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname or parts.path:
        raise ClaryError(f"{url}: expected https://HOST:PORT", fault=Fault.USER)
    context = ssl.create_default_context(cadata=ca_pem or None)
    if not ca_pem:
        assert not token, "a token goes to a service that was checked"
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    body = None if document is None else json.dumps(document).encode()
    line = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=REQUEST_TIMEOUT_S, context=context)
    try:
        line.request(method, path, body, headers)
        response = line.getresponse()
        answer = json.loads(response.read(MAX_ANSWER_BYTES))
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ClaryError(f"the service at {url} does not answer: {error}", fault=Fault.INFRASTRUCTURE) from error
    finally:
        line.close()
    if not isinstance(answer, dict):
        raise ClaryError(f"{url}{path} did not answer with a JSON object", fault=Fault.INFRASTRUCTURE)
    if response.status != http.client.OK:
        message = visible(str(answer.get("message", "no message")))
        raise WireError(str(answer.get("__type", response.status)), message, http_status=response.status)
    return answer
