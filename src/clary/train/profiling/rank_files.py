"""Files of a rank's profiling windows: requests that an agent writes, and answers that the agent reads.

Source: contract/deep_profiles.py.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

from clary.base.errors import ContractError
from clary.base.plain import from_plain, to_plain
from clary.contract.deep_profiles import OUT_FOLDER, ProfileRequest, RankProfile

_REQUEST = re.compile(r"request-([0-9]{1,18})\.json")
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def read_requests(folder: Path) -> list[ProfileRequest]:
    """Return the requests in a folder, oldest first; skip unreadable files."""
    found = []
    for entry in os.scandir(folder):
        if _REQUEST.fullmatch(entry.name):
            try:
                found.append(from_plain(ProfileRequest, json.loads(Path(entry.path).read_text(encoding="utf-8"))))
            except (OSError, ValueError, RecursionError, ContractError):
                continue
    return sorted(found, key=lambda request: request.number)


class RankFiles:
    """The files of one rank for one window; the first process that claims a rank owns it."""

    def __init__(self, folder: Path, number: int, rank: int) -> None:
        self._folder = folder / OUT_FOLDER / str(number)
        self._rank = rank
        self.profile: RankProfile | None = None

    @property
    def trace(self) -> Path:
        """The path of the trace."""
        return self._folder / f"rank-{self._rank}.trace.json.gz"

    def claim(self) -> bool:
        """Claim the rank; return whether this process may answer for it. Raises: OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            os.close(os.open(self._folder / f".rank-{self._rank}.claim", os.O_CREAT | os.O_EXCL | os.O_CLOEXEC))
        except FileExistsError:
            return False
        return True

    def tell(self, profile: RankProfile) -> None:
        """Write the profile's state atomically. Raises: OSError."""
        self.profile = replace(profile, rank=self._rank)
        draft = self._folder / f".rank-{self._rank}.new"
        draft.write_text(json.dumps(to_plain(self.profile)), encoding="utf-8")
        draft.replace(self._folder / f"rank-{self._rank}.json")


def boot_id() -> str:
    """Return the machine's boot id, which identifies its monotonic clock; empty if unknown."""
    try:
        return Path(_BOOT_ID).read_text(encoding="ascii").strip()
    except OSError:
        return ""
