"""Routes for the state folder: its problems, quarantined rows, and backups.

Where: `clary up`, `jobs`, `doctor`, `quarantine` and `backup` send these requests.

    GET  /clary/v1/state                                  -> {"problems": [sentence], "facts": [sentence]}
    GET  /clary/v1/quarantine                             -> {"entries": [...]}
    GET  /clary/v1/quarantine?id=3                        -> {"contents": {column: {"type", "base64"}}}
    POST /clary/v1/quarantine {"action": "release", "id": 3}   or "drop"
    POST /clary/v1/backup                                 -> {"path", "size_bytes"}; nulls for PostgreSQL
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from clary.base.errors import ClaryError, WireError
from clary.base.plain import to_plain
from clary.control.server.backup_keeping import BackupKeeper
from clary.control.services.call import Services
from clary.control.services.job_acts import forget_files
from clary.control.store.quarantine import NoSuchEntry

JOBS_SOURCE = "jobs"
_NUMBER = re.compile(r"[0-9]{1,18}")  # fits into a column of 64 bits


async def state_page(services: Services, backups: BackupKeeper, why_late: str) -> dict[str, list[str]]:
    """Return problems and facts of the service as sentences. Raises: WireError 409.

    Args:
        services: parts of the service.
        backups: makes backups of the database.
        why_late: why the engine that runs jobs on other machines has not started; empty if it has.
    """
    problems, facts = [], []
    with _refusals():
        num_held = await services.store.quarantine.num_held()
    if num_held:
        rows = "1 record" if num_held == 1 else f"{num_held} records"
        problems.append(f"{rows} of the database cannot be read and wait for you; see: clary quarantine")
    if why_late:
        problems.append(f"{why_late}; jobs wait until it does")
    if backups.failure:
        problems.append(backups.failure)
    if backups.backups is not None and (kept := backups.backups.all()):
        facts.append(f"newest backup of the database: {kept[0].path}")
    return {"problems": problems, "facts": facts}


async def quarantine_page(services: Services, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the quarantined rows, or the contents of one row. Raises: WireError 400, 404, 409."""
    quarantine = services.store.quarantine
    with _refusals():
        if "id" in query:
            return {"contents": to_plain(await quarantine.contents(_number(query["id"])))}
        return {"entries": [to_plain(entry) for entry in await quarantine.entries()]}


async def change_quarantine(services: Services, body: Any) -> dict[str, Any]:
    """Put a row back or drop it; a dropped job's files outside of the database are removed too.

    Raises: WireError 400, 404, 409.
    """
    action = body.get("action") if isinstance(body, dict) else None
    if action not in ("release", "drop"):
        raise WireError(
            "ValidationException", f'expected {{"action": "release" or "drop", "id": N}}, got {str(body)[:80]}'
        )
    number = _number(str(body.get("id")))
    with _refusals():
        if action == "release":
            job = await services.store.quarantine.release(number)
            if job is not None and not (job.is_terminal and job.is_released):
                services.hub.adopt(job)
            return {"id": number, "name": None if job is None else job.name}
        entry = await services.store.quarantine.drop(number)
        if entry.is_held and entry.source == JOBS_SOURCE:
            await forget_files(services, entry.name)
        return {"id": number, "name": entry.name}


async def make_backup(backups: BackupKeeper) -> dict[str, Any]:
    """Back up the database now; return path and size, or nulls for PostgreSQL, which is not backed up here.

    Raises: WireError 409.
    """
    with _refusals():
        made = await backups.make()
    path_text = None if made is None else str(made.path)
    return {"path": path_text, "size_bytes": None if made is None else made.size_bytes}


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn refusals of the store into WireErrors."""
    try:
        yield
    except NoSuchEntry as error:
        raise WireError("NotFound", error.message, http_status=404) from error
    except WireError:
        raise
    except ClaryError as error:
        raise WireError("Conflict", error.message, http_status=409) from error


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise WireError("ValidationException", f"id is the number of an entry, got {text[:40]!r}")
    return int(text)
