"""Checks a machine's answer to a probe before the machine becomes a box; computes fingerprints of certificates. Pure.

Where: `hosts` and `join`.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Mapping
from typing import Any

from clary.base.errors import ClaryError, ContractError, Fault
from clary.base.plain import from_plain, to_plain
from clary.cli.tables import visible
from clary.contract.box_protocol import BoxFacts


def checked_probe(found: Mapping[str, Any], name: str, url: str) -> dict[str, Any]:
    """Return a box in the form that the service accepts, from a machine's answer.

    Args:
        found: the machine's answer to `probe`.
        name: name of the new box.
        url: URL of the service.
    Raises: ClaryError saying why the machine cannot be a box, and what to do.
    """
    try:
        facts = from_plain(BoxFacts, found.get("facts"))
    except ContractError as error:
        raise ClaryError(f"{name}: its facts make no sense: {error.message}", fault=Fault.INFRASTRUCTURE) from error
    if why := found.get("why_no_folder"):
        raise ClaryError(
            f"{name}: nothing can be installed there: {visible(str(why))}; name another place with --scratch",
            fault=Fault.USER,
        )
    if why := found.get("why_no_service"):
        raise ClaryError(
            f"{name}: it does not reach the service at {url}: {visible(str(why))}; boxes dial that address: see "
            "setting advertise_url, and open its port",
            fault=Fault.INFRASTRUCTURE,
        )
    return {"name": name, "machine": str(found.get("machine")), "facts": to_plain(facts)}


def fingerprint(ca_pem: str) -> str:
    """Return the SHA-256 of a certificate in hex. Raises: ValueError for a text without a certificate."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(ca_pem.strip())).hexdigest()
