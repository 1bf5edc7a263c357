"""Rehearsals that people asked the service for, as files, the newest `NUM_KEPT` of each job.

Where: `rehearsal_desk` has them carried out and writes here; the page `rehearsals` of a job reads it.

    <home>/rehearsals/JOB/NUMBER/record.json         KeptRehearsal
    <home>/rehearsals/JOB/NUMBER/output.txt          what the command said, errors.txt beside it
    <home>/rehearsals/JOB/NUMBER/certificate.json    written by the command at its end
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from clary.base.errors import ContractError
from clary.base.plain import from_plain, to_plain
from clary.base.processes import ProcessId

NUM_KEPT = 10
MAX_LINES = 300  # of what the command said, the last ones
MAX_TAIL_BYTES = 64 * 1024
MAX_CERTIFICATE_BYTES = 8 * 1024 * 1024
RECORD, OUTPUT, ERRORS, CERTIFICATE = "record.json", "output.txt", "errors.txt", "certificate.json"


class RehearsalState(StrEnum):
    """How a rehearsal stands."""

    RUNNING = "running"
    CERTIFIED = "certified"  # terminal: there is a certificate, whatever it says
    FAILED = "failed"  # terminal: it could not be carried out
    CANCELLED = "cancelled"  # terminal: somebody ended it
    INTERRUPTED = "interrupted"  # terminal: the service was stopped, or killed, while it ran


@dataclass(frozen=True, kw_only=True)
class KeptRehearsal:
    """One rehearsal of a job; `number` grows.

    Attributes:
        faults: what was asked for, in words.
        arguments: of `clary rehearse`, before the job's name.
        twin, rehearsal: names of the two jobs, which may not have been created yet, or be deleted.
        process: that carries it out, while it runs.
        why: in words, why there is no certificate.
        verdict, reason: of the certificate.
    """

    job: str
    number: int
    state: RehearsalState
    faults: tuple[str, ...]
    arguments: tuple[str, ...]
    twin: str
    rehearsal: str
    started_at: datetime
    seed: int | None = None
    process: ProcessId | None = None
    ended_at: datetime | None = None
    why: str = ""
    verdict: str = ""
    reason: str = ""

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes of it."""
        return self.state is not RehearsalState.RUNNING


class RehearsalShelf:
    """Reads and writes below one folder; small files, few of them.

    Args:
        folder: holds one folder a job.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def place(self, job_name: str, number: int) -> Path:
        """Return the folder of a rehearsal."""
        return self._folder / job_name / str(number)

    def write(self, kept: KeptRehearsal) -> None:
        """Keep a rehearsal as it stands."""
        path = self.place(kept.job, kept.number) / RECORD
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".new")
        draft.write_text(json.dumps(to_plain(kept)), encoding="utf-8")
        draft.replace(path)

    def read_all(self) -> list[KeptRehearsal]:
        """Return all rehearsals of all jobs, in the order in which each job had them."""
        found = [_read(path) for path in self._folder.glob(f"*/*/{RECORD}")]
        return sorted((kept for kept in found if kept is not None), key=lambda kept: (kept.job, kept.number))

    def certificate(self, job_name: str, number: int) -> dict[str, Any] | None:
        """Return the certificate; None while there is none that is whole."""
        path = self.place(job_name, number) / CERTIFICATE
        try:
            if path.stat().st_size > MAX_CERTIFICATE_BYTES:
                return None
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) and isinstance(found.get("verdict"), str) else None

    def lines(self, job_name: str, number: int, name: str = OUTPUT) -> list[str]:
        """Return the last lines of what the command said."""
        try:
            with (self.place(job_name, number) / name).open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - MAX_TAIL_BYTES))
                text = file.read(MAX_TAIL_BYTES).decode("utf-8", "replace")
        except OSError:
            return []
        return text.splitlines()[-MAX_LINES:]

    def remove(self, job_name: str, number: int) -> None:
        """Remove a rehearsal; the folder of its job goes with the last one."""
        shutil.rmtree(self.place(job_name, number), ignore_errors=True)
        folder = self._folder / job_name
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def _read(path: Path) -> KeptRehearsal | None:
    try:
        return from_plain(KeptRehearsal, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, ContractError):
        return None
