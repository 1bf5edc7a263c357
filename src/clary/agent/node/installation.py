"""Installation of the daemon on a box, or its replacement by a newer daemon, which finds the running leases.

Where: `python node.pyz install` over SSH or by `clary join`, with JSON on standard input: name, url, ca_pem, token and
scratch.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clary.agent.node.box_folder import BoxConfig, BoxFolder, make_private, owners_name, write_json
from clary.agent.node.machine import machine_digest
from clary.agent.node.reaching import why_no_service
from clary.agent.node.user_unit import start_daemon, stop_unit, who_restarts
from clary.base.errors import ContractError
from clary.base.plain import to_plain
from clary.base.processes import ProcessId
from clary.base.whole_files import replace_durably
from clary.contract.box_protocol import BOX_NAME

HOME_NAME = ".clary-node"
STOP_LIMIT_S = 10.0  # for the end of the old daemon, which normally takes tenths of a second
START_LIMIT_S = 15.0
_LOOK_S = 0.05


class InstallError(Exception):
    """The daemon could not be installed; the message has the reason and a remedy."""


def install(wanted: Mapping[str, Any], archive: Path) -> dict[str, Any]:
    """Install and start the daemon; return its folder, digest, process and the mechanism that restarts it.

    Args:
        wanted: name, url, ca_pem, token and scratch, all strings.
        archive: zip file with this code.
    Raises: InstallError.
    """
    texts = {key: wanted.get(key) for key in ("name", "url", "ca_pem", "token", "scratch")}
    if not all(isinstance(text, str) for text in texts.values()) or not BOX_NAME.fullmatch(str(texts["name"])):
        raise InstallError("expected name, url, ca_pem, token and scratch as texts")
    asked = {key: str(text) for key, text in texts.items()}
    try:
        return _install(asked, archive)
    except (OSError, ContractError) as error:
        raise InstallError(f"{own_folder(asked['scratch'])}: {error}") from error


def own_folder(scratch: str) -> Path:
    """Return the folder of this machine's daemon; a home may be shared by many machines.

    Args:
        scratch: folder chosen by the owner, used as parent if the home is not writable.
    """
    home = Path(os.path.expanduser("~"))
    base = home if os.access(home, os.W_OK) or not scratch else Path(scratch)
    return base / HOME_NAME / _machine_name()


def _machine_name() -> str:
    """Return this machine's hostname as the name of a folder."""
    return "".join(c if c.isalnum() or c in ".-" else "_" for c in socket.gethostname())


def installed(scratch: str) -> BoxConfig | None:
    """Return the settings of the installed daemon; None without a daemon."""
    try:
        return BoxFolder(own_folder(scratch)).read_config()
    except (OSError, ContractError):
        return None


def _install(asked: Mapping[str, str], archive: Path) -> dict[str, Any]:
    folder = BoxFolder(own_folder(asked["scratch"]))
    old = installed(asked["scratch"])
    if old is not None and _serves_another(folder, old, asked["ca_pem"]):
        raise InstallError(f"this machine is box {old.name} of {old.url}, which answers; remove it there first")
    make_private(folder.root.parent)
    make_private(folder.root)
    scratch, former = _scratch(asked["scratch"], old)
    packed = archive.read_bytes()
    digest = hashlib.sha256(packed).hexdigest()
    config = BoxConfig(
        name=asked["name"],
        url=asked["url"],
        machine=machine_digest(),
        scratch=scratch,
        former_scratch=former,
        restarts=who_restarts(),
    )
    replace_durably(folder.archive(digest), packed)  # on a full disk the old daemon goes on
    stop_unit(config.name)
    _stop(folder)
    make_private(folder.root)  # the old daemon may have removed it: its box was removed, and is added again
    if not folder.archive(digest).exists():
        replace_durably(folder.archive(digest), packed)
    replace_durably(folder.authority, asked["ca_pem"].encode())
    replace_durably(folder.token, asked["token"].encode())
    write_json(folder.config, to_plain(config))
    start_daemon(folder, folder.archive(digest), config.name)
    pid = _await_start(folder)
    return {"folder": str(folder.root), "daemon": digest, "pid": pid, "restarts": config.restarts}


def _serves_another(folder: BoxFolder, old: BoxConfig, ca_pem: str) -> bool:
    """Whether the installed daemon belongs to another service that still answers."""
    try:
        theirs = folder.authority.read_text(encoding="ascii")
    except (OSError, ValueError):
        return False
    return theirs != ca_pem and not why_no_service(old.url, theirs)


def _scratch(asked: str, old: BoxConfig | None) -> tuple[str, tuple[str, ...]]:
    """Return the folder for hosts, and the folders of earlier installations; an empty request keeps the folder.

    Each machine has a folder of its own below the owner's, which machines may share.
    """
    former = () if old is None else old.former_scratch
    before = "" if old is None else old.scratch
    if not asked:
        if before:
            make_private(Path(before))
        return before, former
    place = Path(asked).absolute() / owners_name()
    make_private(place)
    place /= _machine_name()
    make_private(place)
    scratch = str(place)
    return scratch, tuple(sorted({*former, before} - {scratch, ""}))


def _stop(folder: BoxFolder) -> None:
    """End the running daemon; leases keep running."""
    deadline_s = time.monotonic() + STOP_LIMIT_S
    while (running := holder(folder)) is not None:
        left_s = deadline_s - time.monotonic()
        if left_s > 0:
            running.terminate(timeout_s=left_s)
        elif not running.kill(timeout_s=STOP_LIMIT_S):
            raise InstallError(f"the old daemon, process {running.pid}, does not end")
        time.sleep(_LOOK_S)


def _await_start(folder: BoxFolder) -> int:
    deadline_s = time.monotonic() + START_LIMIT_S
    while (running := holder(folder)) is None:
        if time.monotonic() > deadline_s:
            words = folder.log.read_text(encoding="utf-8", errors="replace")[-300:] if folder.log.exists() else ""
            raise InstallError(f"the daemon did not start within {START_LIMIT_S:.0f} s: {words.strip()}")
        time.sleep(_LOOK_S)
    return running.pid


def holder(folder: BoxFolder) -> ProcessId | None:
    """Return the daemon that has locked the folder; None without a daemon."""
    try:
        descriptor = os.open(folder.lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        known = json.loads(os.pread(descriptor, 4096, 0))
        process = ProcessId(int(known["pid"]), str(known["started"]))
    except (ValueError, KeyError, TypeError):
        return None  # a daemon has just locked the folder and is writing
    finally:
        os.close(descriptor)
    return process if process.is_alive() else None
