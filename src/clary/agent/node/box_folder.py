"""The folder of a box's daemon: its settings, its token, its leases; settings and token are complete or missing.

Where: `installation` fills it, `daemon` and `keeper` use it. Only its owner may enter it.

    config.json, ca.pem, token          the service that the daemon polls, and the daemon's credentials
    node-DIGEST.pyz                     the daemon
    node.log                            the daemon's output
    lock                                locked by the running daemon, contains its process
    leases/LEASE/...                    see `lease_files`
    set-aside/LEASE/...                 leases whose records are damaged
    boots/DIGEST.py                     boot programs from the service
    scratch/                            folder for hosts, unless the box has another folder for them
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clary.base.errors import ContractError
from clary.base.plain import from_plain
from clary.base.whole_files import replace_durably

# Options of Python: load only this file's code and the standard library, despite other packages or variables.
ISOLATED = ("-I", "-S")
PRIVATE = 0o700
MAX_FILE_BYTES = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class BoxConfig:
    """Name, service and paths of a daemon."""

    name: str  # name of the box
    url: str  # https://HOST:PORT of the service
    machine: str  # digest that identifies this machine and user
    scratch: str = ""  # folder for hosts; empty: inside the daemon's folder
    former_scratch: tuple[str, ...] = ()  # folders for hosts before it; hosts may still run there
    restarts: str = ""  # phrase: the mechanism that starts the daemon after a reboot


@dataclass(frozen=True)
class BoxFolder:
    """Paths below the folder."""

    root: Path

    @property
    def config(self) -> Path:
        """config.json."""
        return self.root / "config.json"

    @property
    def authority(self) -> Path:
        """ca.pem."""
        return self.root / "ca.pem"

    @property
    def token(self) -> Path:
        """The box's token."""
        return self.root / "token"

    @property
    def lock(self) -> Path:
        """The lock of the running daemon."""
        return self.root / "lock"

    @property
    def log(self) -> Path:
        """Output of the daemon."""
        return self.root / "node.log"

    @property
    def leases(self) -> Path:
        """Folders of leases."""
        return self.root / "leases"

    @property
    def set_aside(self) -> Path:
        """Folders of leases whose records are damaged."""
        return self.root / "set-aside"

    @property
    def boots(self) -> Path:
        """Folder of boot programs."""
        return self.root / "boots"

    def archive(self, digest: str) -> Path:
        """Return the path of the daemon's file with a digest."""
        return self.root / f"node-{digest}.pyz"

    def read_config(self) -> BoxConfig:
        """Return the settings. Raises: OSError, ContractError."""
        return from_plain(BoxConfig, read_json(self.config))

    def scratch(self, config: BoxConfig) -> Path:
        """Return the folder that boot programs use for their hosts."""
        return Path(config.scratch) if config.scratch else self.root / "scratch"


def owners_name() -> str:
    """Return the name of this user's folder in a folder for hosts, which boxes may share."""
    return f"clary-node-{os.geteuid()}"


def make_private(folder: Path) -> None:
    """Make a private folder; refuse a link or another user's folder. Raises: OSError."""
    folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
    found = os.lstat(folder)
    if not os.path.isdir(folder) or os.path.islink(folder) or found.st_uid != os.geteuid():
        raise PermissionError(1, "is a link, or belongs to somebody else", str(folder))
    if found.st_mode & 0o077:
        folder.chmod(PRIVATE)


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON document with `replace_durably`."""
    replace_durably(path, json.dumps(document).encode())


def read_json(path: Path) -> Any:
    """Return a JSON document. Raises: OSError; ContractError for a text that is not JSON."""
    with open(path, "rb") as file:
        text = file.read(MAX_FILE_BYTES)
    try:
        return json.loads(text)
    except ValueError as error:
        raise ContractError(f"{path}: is not JSON: {error}") from error
