"""Storage of rehearsals that people requested from the service, the newest `NUM_KEPT` of each job.

Where: `rehearsal_desk` runs rehearsals and writes their records; the page `rehearsals` of a job reads them. Records and
certificates are in the database. The command works in a folder of its own and writes files:

    <home>/rehearsals/JOB/NUMBER/output.txt          the command's output; errors.txt contains its errors
    <home>/rehearsals/JOB/NUMBER/certificate.json    written by the command at its end, then copied
"""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from clary.base.plain import to_plain
from clary.base.processes import ProcessId
from clary.control.store.documents.numbered_documents import NumberedDocuments, built

NUM_KEPT = 10
MAX_LINES = 300  # last lines of the command's output
MAX_TAIL_BYTES = 64 * 1024
MAX_CERTIFICATE_BYTES = 8 * 1024 * 1024
RECORD, CERTIFICATE = "record", "certificate"  # documents
OUTPUT, ERRORS, CERTIFICATE_FILE = "output.txt", "errors.txt", "certificate.json"


class RehearsalState(StrEnum):
    """State of a rehearsal."""

    RUNNING = "running"
    CERTIFIED = "certified"  # terminal: the command wrote a certificate, with any verdict
    FAILED = "failed"  # terminal: the rehearsal could not be run
    CANCELLED = "cancelled"  # terminal: a person cancelled the rehearsal
    INTERRUPTED = "interrupted"  # terminal: the service was stopped, or killed, during the rehearsal


@dataclass(frozen=True, kw_only=True)
class KeptRehearsal:
    """One rehearsal of a job; `number` grows.

    Attributes:
        faults: requested faults, in words.
        arguments: arguments of `clary rehearse`, before the job's name.
        twin, rehearsal: names of the two jobs, which may not exist yet or no longer.
        process: process that runs the rehearsal, while it runs.
        why: sentence on why there is no certificate.
        verdict, reason: verdict and reason of the certificate.
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
        """Whether the rehearsal has ended."""
        return self.state is not RehearsalState.RUNNING


class RehearsalShelf:
    """Reads and writes rehearsals.

    Args:
        documents: stored documents of the kind "rehearsals".
        folder: contains one folder per job.
    """

    def __init__(self, documents: NumberedDocuments, folder: Path) -> None:
        self._documents = documents
        self._folder = folder

    def place(self, job_name: str, number: int) -> Path:
        """Return the folder of a rehearsal."""
        return self._folder / job_name / str(number)

    async def write(self, kept: KeptRehearsal) -> None:
        """Store a rehearsal's record, and its certificate, if any.

        Raises: JobNotFound for a job that was deleted.
        """
        documents: dict[str, object] = {RECORD: to_plain(kept)}
        if kept.is_over and (written := await asyncio.to_thread(self.written, kept.job, kept.number)) is not None:
            documents[CERTIFICATE] = written
        await self._documents.put(kept.job, kept.number, documents)

    async def read_all(self) -> list[KeptRehearsal]:
        """Return all rehearsals of all jobs, for each job in their order."""
        found = [built(KeptRehearsal, document) for _, _, document in await self._documents.read_named(RECORD)]
        return [kept for kept in found if kept is not None]

    async def certificate(self, job_name: str, number: int) -> dict[str, Any] | None:
        """Return the certificate of an ended rehearsal, or None."""
        found = await self._documents.read_one(job_name, number, CERTIFICATE)
        return found if _is_certificate(found) else None

    def written(self, job_name: str, number: int) -> dict[str, Any] | None:
        """Return the certificate that the command has written, or None before it is complete."""
        path = self.place(job_name, number) / CERTIFICATE_FILE
        try:
            if path.stat().st_size > MAX_CERTIFICATE_BYTES:
                return None
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if _is_certificate(found) else None

    def lines(self, job_name: str, number: int, name: str = OUTPUT) -> list[str]:
        """Return the last `MAX_LINES` lines of the command's output, or of the file `name`; empty without the file.

        Args:
            job_name: the job that is rehearsed.
            number: number of the rehearsal.
            name: `OUTPUT` or `ERRORS`.
        """
        try:
            with (self.place(job_name, number) / name).open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - MAX_TAIL_BYTES))
                text = file.read(MAX_TAIL_BYTES).decode("utf-8", "replace")
        except OSError:
            return []
        return text.splitlines()[-MAX_LINES:]

    async def remove(self, job_name: str, number: int) -> None:
        """Remove a rehearsal, and with the last rehearsal the folder of its job."""
        await self._documents.remove(job_name, number)
        await asyncio.to_thread(self._remove_files, job_name, number)

    def _remove_files(self, job_name: str, number: int) -> None:
        shutil.rmtree(self.place(job_name, number), ignore_errors=True)
        folder = self._folder / job_name
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def _is_certificate(found: object) -> bool:
    return isinstance(found, dict) and isinstance(found.get("verdict"), str)
