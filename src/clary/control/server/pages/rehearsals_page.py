"""The page `rehearsals` of a job: starts, monitors and cancels rehearsals, and shows their certificates.

    GET  /clary/v1/jobs/NAME/rehearsals              -> {"rehearsals": [...], "rehearsal": the newest}
    GET  /clary/v1/jobs/NAME/rehearsals?number=2     -> likewise, with number 2 as "rehearsal"
    GET  /clary/v1/jobs/NAME/rehearsals?options=1    -> possible faults: hosts, refusals, size of disks
    POST /clary/v1/jobs/NAME/rehearsals              {"confirm": "NAME", ...}, an order -> {"number": 3}
                                                     {"cancel": 3} -> {"number": 3}

Source: `control.rehearsal.orders` for the form of an order; docs/rehearsal.md for its results.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import shlex
from collections.abc import Mapping
from typing import Any, Protocol

from clary.base.errors import ContractError, WireError
from clary.base.plain import to_plain
from clary.control.jobs.job_state import job_state_row
from clary.control.jobs.training_job import TrainingJob
from clary.control.reconcile.desks.rehearsal_desk import RehearsalDesk
from clary.control.reconcile.desks.rehearsal_shelf import KeptRehearsal
from clary.control.rehearsal.orders import MAX_SEED, read_order
from clary.control.rehearsal.requests import host_names
from clary.control.services.call import Services

_NUMBER = re.compile(r"[0-9]{1,9}")


class Possibilities(Protocol):
    """Knows the faults that are available here."""

    def refusals(self) -> Mapping[str, str]:
        """Return kind of fault -> the reason why it is not available here."""

    def largest_disk_bytes(self) -> int:
        """Return the largest total size in bytes of the disks of a rehearsal's hosts."""


class RehearsalPages:
    """Answers for the rehearsals of jobs.

    Args:
        services: jobs, live and stored.
        desk: runs rehearsals.
        faults: knows the available faults.
    """

    def __init__(self, services: Services, desk: RehearsalDesk, faults: Possibilities) -> None:
        self._services = services
        self._desk = desk
        self._faults = faults

    def facts(self, job: TrainingJob) -> dict[str, Any]:
        """Return a job's rehearsals for its page, and the rehearsal that the job was created for, if any."""
        role = self._desk.role_of(job.name)
        return {
            "rehearsals": [_brief(kept) for kept in self._desk.of(job.name)],
            "rehearsal_of": None if role is None else role._asdict(),
        }

    async def page(self, job: TrainingJob, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the page. Raises: WireError 404 for an unknown rehearsal."""
        if "options" in query:
            return await asyncio.to_thread(self._options, job)
        all_kept = self._desk.of(job.name)
        wanted = query.get("number", "")
        chosen = all_kept[0] if all_kept and not wanted else None
        if wanted:
            number = int(wanted) if _NUMBER.fullmatch(wanted) else -1
            chosen = next((kept for kept in all_kept if kept.number == number), None)
            if chosen is None:
                having = (
                    f"there are {', '.join(str(kept.number) for kept in all_kept)}" if all_kept else "none was made"
                )
                message = f"{job.name} has no rehearsal {wanted[:20]}; {having}"
                raise WireError("NotFound", message, http_status=404)
        return {
            "job": job.name,
            "rehearsals": [_brief(kept) for kept in all_kept],
            "rehearsal": None if chosen is None else await self._whole(chosen),
        }

    async def act(self, job: TrainingJob, body: Any) -> dict[str, Any]:
        """Begin or end a rehearsal, without waiting for it.

        Raises: WireError for an impossible order, an order without the job's name, and while another rehearsal runs.
        """
        asked = body if isinstance(body, Mapping) else {}
        if "cancel" in asked:
            number = asked["cancel"]
            if not isinstance(number, int) or isinstance(number, bool):
                raise WireError(
                    "ValidationException", f"cancel must be the number of a rehearsal, got {str(number)[:40]}"
                )
            self._desk.cancel(job.name, number)
            return {"number": number}
        if asked.get("confirm") != job.name:
            raise WireError(
                "ValidationException",
                f"a rehearsal creates two jobs: to confirm this, set confirm to the job's name ({job.name}), "
                f"got {str(asked.get('confirm'))[:80]}",
            )
        try:
            order = read_order(
                asked,
                request=job.request,
                refusals=self._faults.refusals(),
                largest_disk_bytes=self._faults.largest_disk_bytes(),
                new_seed=secrets.randbelow(MAX_SEED + 1),
            )
        except ContractError as error:
            raise WireError("ValidationException", error.message) from error
        return {"number": (await self._desk.start(job.name, order)).number}

    def _options(self, job: TrainingJob) -> dict[str, Any]:
        return {
            "job": job.name,
            "hosts": list(host_names(job.request)),
            "refusals": dict(self._faults.refusals()),
            "largest_disk_bytes": self._faults.largest_disk_bytes(),
            "has_checkpoints": bool((job.request.get("CheckpointConfig") or {}).get("S3Uri")),
            "is_spot": bool(job.request.get("EnableManagedSpotTraining")),
            "under_way": next((kept.number for kept in self._desk.of(job.name) if not kept.is_over), None),
        }

    async def _whole(self, kept: KeptRehearsal) -> dict[str, Any]:
        shelf = self._desk.shelf
        return {
            **_brief(kept),
            "faults": list(kept.faults),
            "seed": kept.seed,
            "command": shlex.join(["clary", "rehearse", *kept.arguments, kept.job]),
            "jobs": {"twin": await self._job(kept.twin), "rehearsal": await self._job(kept.rehearsal)},
            "lines": await asyncio.to_thread(shelf.lines, kept.job, kept.number),
            "certificate": await shelf.certificate(kept.job, kept.number) if kept.is_over else None,
        }

    async def _job(self, name: str) -> dict[str, Any]:
        """Return the state of one of the two jobs; its statuses are null before its creation and after its deletion."""
        job = await self._services.find_job(name)
        if job is None:
            gone = dict.fromkeys(("status", "secondary_status", "state"))
            return {"name": name, **gone, "attempt": 0, "failure_reason": ""}
        return {**job_state_row(job), "attempt": job.attempt}


def _brief(kept: KeptRehearsal) -> dict[str, Any]:
    return {
        "number": kept.number,
        "state": kept.state.value,
        "why": kept.why,
        "verdict": kept.verdict,
        "reason": kept.reason,
        "num_faults": len(kept.faults),
        "started_at": to_plain(kept.started_at),
        "ended_at": to_plain(kept.ended_at),
    }
