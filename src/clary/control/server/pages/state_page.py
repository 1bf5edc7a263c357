"""State folder over HTTP: its faults, rows set aside, and backups. Opened by the admin token.

Where: `clary up`, `jobs`, `doctor`, `quarantine` and `backup` ask.

    GET  /clary/v1/state                                  -> {"problems": [sentence], "facts": [sentence]}
    GET  /clary/v1/quarantine                             -> {"entries": [...]}
    GET  /clary/v1/quarantine?id=3                        -> {"contents": {column: {"type", "base64"}}}
    POST /clary/v1/quarantine {"action": "release", "id": 3}   or "drop"
    POST /clary/v1/backup                                 -> {"path", "made_at", "size_bytes"}, or nulls for PostgreSQL
"""

from __future__ import annotations

import hmac
from typing import Any

from clary.base.errors import ClaryError, WireError
from clary.base.plain import to_plain
from clary.control.server.backup_keeping import BackupKeeper
from clary.control.server.edge.internal_http import bearer_token, json_answer, query_of, read_json
from clary.control.services.call import Services
from clary.control.store.quarantine import NoSuchEntry
from clary.control.wire.messages import HttpRequest, HttpResponse

STATE_PATH = "/clary/v1/state"
QUARANTINE_PATH = "/clary/v1/quarantine"
BACKUP_PATH = "/clary/v1/backup"
JOBS_SOURCE = "jobs"
_MOST_ID = 2**62


class StateRoutes:
    """Answers requests for these pages."""

    def __init__(self, services: Services, backups: BackupKeeper, *, admin_token: str) -> None:
        self._services = services
        self._backups = backups
        self._admin_token = admin_token

    def has(self, path: str) -> bool:
        """Whether a path is one of these pages."""
        return path in (STATE_PATH, QUARANTINE_PATH, BACKUP_PATH)

    async def handle(self, request: HttpRequest) -> HttpResponse:
        """Answer one request; raises WireError with the status to send."""
        if not hmac.compare_digest(bearer_token(request).encode(), self._admin_token.encode()):
            raise WireError("AccessDenied", "the token does not open this service", http_status=403)
        try:
            match (request.method, request.raw_path):
                case ("GET", path) if path == STATE_PATH:
                    return json_answer(await self._state())
                case ("GET", path) if path == QUARANTINE_PATH:
                    return json_answer(await self._entries(query_of(request)))
                case ("POST", path) if path == QUARANTINE_PATH:
                    return json_answer(await self._act(read_json(request)))
                case ("POST", path) if path == BACKUP_PATH:
                    made = await self._backups.make()
                    path_text = None if made is None else str(made.path)
                    return json_answer({"path": path_text, "size_bytes": None if made is None else made.size_bytes})
        except NoSuchEntry as error:
            raise WireError("NotFound", error.message, http_status=404) from error
        except WireError:
            raise
        except ClaryError as error:
            raise WireError("Conflict", error.message, http_status=409) from error
        raise WireError("MethodNotAllowed", f"{request.method} {request.raw_path} is nothing to ask", http_status=405)

    async def _state(self) -> dict[str, list[str]]:
        problems, facts = [], []
        num_held = await self._services.store.quarantine.num_held()
        if num_held:
            rows = "1 record" if num_held == 1 else f"{num_held} records"
            problems.append(f"{rows} of the database cannot be read and wait for you; see: clary quarantine")
        if self._backups.failure:
            problems.append(self._backups.failure)
        if self._backups.backups is not None and (kept := self._backups.backups.all()):
            facts.append(f"newest backup of the database: {kept[0].path}")
        return {"problems": problems, "facts": facts}

    async def _entries(self, query: dict[str, str]) -> dict[str, Any]:
        quarantine = self._services.store.quarantine
        if "id" in query:
            return {"contents": to_plain(await quarantine.contents(_number(query["id"])))}
        return {"entries": [to_plain(entry) for entry in await quarantine.entries()]}

    async def _act(self, body: Any) -> dict[str, Any]:
        """Take a row back or give it up; a dropped job's files outside of the database are removed too."""
        action = body.get("action") if isinstance(body, dict) else None
        if action not in ("release", "drop"):
            raise WireError(
                "ValidationException", f'expected {{"action": "release" or "drop", "id": N}}, got {str(body)[:80]}'
            )
        number = _number(str(body.get("id")))
        if action == "release":
            job = await self._services.store.quarantine.release(number)
            if job is not None and not (job.is_terminal and job.is_released):
                self._services.hub.adopt(job)
            return {"id": number, "name": None if job is None else job.name}
        entry = await self._services.store.quarantine.drop(number)
        if entry.is_held and entry.source == JOBS_SOURCE:
            await self._services.logs.delete_streams(f"{entry.name}/")
            await self._services.work_folders.forget(entry.name)
            await self._services.profiles.forget(entry.name)
        return {"id": number, "name": entry.name}


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) > _MOST_ID:
        raise WireError("ValidationException", f"id is the number of an entry, got {text[:40]!r}")
    return int(text)
