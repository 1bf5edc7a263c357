"""Determines the isolation that this machine allows, with sentences on all resources that stay shared.

Where: `LocalEngine` calls it once; the result is in every plan, in `describe` and in `clary doctor`. Findings of a
host's agent (memory limits, mounts) arrive later with the host's facts.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from clary.base.errors import EngineError, Fault
from clary.base.limited_runs import RunTooLong, run_limited
from clary.contract.launch_plan import Isolation
from clary.control.engines.local.anchors import ANCHOR_COMMAND

PROBE_TIMEOUT_S = 20.0
TUN_DEVICE = "/dev/net/tun"
AUTO = "auto"

_SHARED_NETWORK = (
    "Hosts share this machine's network: all of them have the address 127.0.0.1, each job takes a free master port in "
    "place of 7777, and links cannot be shaped.",
    "Hosts share this machine's processes, hostname and files: a program sees those of other jobs. All of "
    "them run as one user, so programs can read the service's keys, and with them do all that its owner can.",
    "Ports of frameworks ask for no proof: any user of this machine reaches torch's store, jax's coordinator, "
    "XGBoost's tracker and the servers of TensorFlow and MXNet, the network all of these but jax's and XGBoost's. Who "
    "reaches servers of TensorFlow or MXNet runs code as this user.",
)


def choose_isolation(setting: str, environ: Mapping[str, str]) -> tuple[Isolation, tuple[str, ...]]:
    """Return the isolation for `setting` (auto, namespaces or processes), and sentences on its gaps.

    Raises: EngineError if the setting is not one of these, or requires namespaces that the machine does not permit.
    """
    allowed = (AUTO, Isolation.NAMESPACES.value, Isolation.PROCESSES.value)
    if setting not in allowed:
        raise EngineError(f"setting isolation: expected one of {', '.join(allowed)}, got {setting!r}", fault=Fault.USER)
    if setting == Isolation.PROCESSES.value:
        return Isolation.PROCESSES, ("Hosts are plain processes: setting isolation says so.", *_SHARED_NETWORK)
    reason, found = _probe(environ)
    if reason is None:
        return Isolation.NAMESPACES, _not_isolated(**found)
    if setting == Isolation.NAMESPACES.value:
        raise EngineError(
            f"setting isolation asks for namespaces and this machine refuses them: {reason}. Run the service as root, "
            "allow user namespaces, or set isolation to auto",
            fault=Fault.USER,
        )
    return Isolation.PROCESSES, (
        f"Hosts are plain processes, because this machine refuses namespaces: {reason}.",
        *_SHARED_NETWORK,
    )


def _probe(environ: Mapping[str, str]) -> tuple[str | None, dict[str, Any]]:
    """Make a test network; return its failure, if any, and the facts for `_not_isolated`."""
    if not sys.platform.startswith("linux"):
        return f"namespaces are Linux's, this is {sys.platform}", {}
    try:
        done = run_limited([*ANCHOR_COMMAND, "--probe"], limit_s=PROBE_TIMEOUT_S, variables=environ)
        answer = json.loads(done.output)
    except (OSError, RunTooLong) as error:
        return f"the probe did not run: {error}", {}
    except ValueError:
        return f"the probe ended with exit code {done.code}: {done.errors.strip()[-500:]}", {}
    return answer["error"], {name: answer.get(name) for name in ("has_user_namespace", "why_no_users")}


def _not_isolated(*, has_user_namespace: bool, why_no_users: str) -> tuple[str, ...]:
    sentences = []
    if why_no_users:
        sentences.append(
            "Users: programs run as root of this machine with fewer rights, and read every file that hosts show, "
            f"because no user namespace could be made for them: {why_no_users}."
        )
    if has_user_namespace:
        sentences.append("Hosts run in a user namespace: inside they are root, on this machine the service's own user.")
    if not os.access(TUN_DEVICE, os.R_OK | os.W_OK):
        sentences.append(
            f"Links cannot be given delay or loss: {TUN_DEVICE} is "
            + ("not open to this user." if os.path.exists(TUN_DEVICE) else "missing.")
        )
    return tuple(sentences)
