"""Check whether a machine can be a box, before an installation.

Where: `python node.pyz probe` over SSH or by `clary join`, with JSON on standard input: url and ca_pem of the service,
and the scratch folder chosen by the owner.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clary.agent.node.installation import installed, own_folder
from clary.agent.node.machine import box_facts, gpu_uuids, machine_digest
from clary.agent.node.reaching import why_no_service
from clary.agent.node.user_unit import who_restarts
from clary.base.plain import to_plain

MIN_FREE_BYTES = 1 << 30


def probe(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the machine's facts, and the reasons why it cannot be a box.

    Args:
        wanted: url, ca_pem and scratch.
    """
    scratch = str(wanted.get("scratch") or "")
    old = installed(scratch)
    return {
        "facts": to_plain(box_facts(restarts=who_restarts(), gpus=gpu_uuids())),
        "machine": machine_digest(),
        "python": sys.executable,
        "time": time.time(),
        "why_no_folder": _why_not_writable(scratch),
        "why_no_service": why_no_service(str(wanted.get("url") or ""), str(wanted.get("ca_pem") or "")),
        "box": "" if old is None else old.name,
        "service": "" if old is None else old.url,
    }


def _why_not_writable(scratch: str) -> str:
    """Return "", or the reason why the daemon's folder or the scratch folder cannot be used."""
    wanted = [Path(scratch)] if scratch else []
    for place in (*wanted, own_folder(scratch).parent.parent):
        try:
            if place in wanted:
                place.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=place) as file:
                file.write(b"1")
            if shutil.disk_usage(place).free < MIN_FREE_BYTES:
                return f"{place}: less than 1 GiB is free"
        except OSError as error:
            return f"{place}: {error.strerror}"
    return ""
