"""Requests for dumps of jobs' processes, and the answers.

Where: the agent gateway passes requests to agents and their answers back; the page `dump` of a job reads the answers.
The newest `NUM_KEPT` dumps of each job are in the database: the request, and one document per host.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from clary.base.clock import Clock
from clary.base.errors import WireError
from clary.base.plain import to_plain
from clary.contract.stack_dumps import HostDump
from clary.control.jobs.training_job import TrainingJob
from clary.control.store.documents.numbered_documents import REQUEST, NumberedDocuments, built

NUM_KEPT = 10
WANTED_S = 60.0  # after the request; a host that has not answered by then is given up


@dataclass(frozen=True, kw_only=True)
class DumpRequest:
    """One dump of all hosts of an attempt; `number` grows."""

    number: int
    reason: str
    attempt: int
    hosts: tuple[str, ...]
    asked_at: datetime


class DumpDesk:
    """Requests dumps from hosts and stores their answers; all methods must run in one event loop.

    Args:
        documents: stored documents of the kind "dumps".
        clock: measures the time that a request is open.
    """

    def __init__(self, documents: NumberedDocuments, *, clock: Clock) -> None:
        self._documents = documents
        self._clock = clock
        self._asking = asyncio.Lock()
        self._wanted: dict[tuple[str, int], tuple[float, DumpRequest]] = {}  # job, attempt -> time, request
        self._answered: dict[tuple[str, int], set[str]] = {}  # job, attempt -> hosts that have answered

    async def ask(self, job: TrainingJob, reason: str) -> DumpRequest:
        """Request a dump of every host of a job; each gets the request in the answer to its next report.

        While hosts have yet to answer an earlier request, that request is returned.

        Raises: JobNotFound for a job that was deleted.
        """
        async with self._asking:
            present = self._present(job)
            if present is not None and not self._answered[job.name, job.attempt].issuperset(present.hosts):
                return present
            now = self._clock.now()
            numbers = await self._documents.numbers(job.name)
            request = DumpRequest(
                number=max(int(now.timestamp() * 1000), numbers[0] + 1 if numbers else 0),
                reason=reason,
                attempt=job.attempt,
                hosts=tuple(job.hosts),
                asked_at=now,
            )
            await self._documents.put(job.name, request.number, {REQUEST: to_plain(request)}, keep=NUM_KEPT)
            self._wanted[job.name, job.attempt] = (self._clock.monotonic(), request)
            self._answered[job.name, job.attempt] = set()
            return request

    def wanted(self, job: TrainingJob, host: str) -> DumpRequest | None:
        """Return the open request that a host has yet to answer, or None; a request is open for `WANTED_S`."""
        request = self._present(job)
        return None if request is None or host in self._answered[job.name, job.attempt] else request

    async def take(self, job: TrainingJob, host: str, dump: HostDump) -> None:
        """Store a dump; without an open request, an unrequested dump becomes a request to the job's other hosts.

        Raises: WireError 404 for an answer to a request that this attempt and host do not have.
        """
        if dump.number == 0:
            request: DumpRequest | None = self._present(job) or await self.ask(job, f"{host}: {dump.reason}")
        else:
            request = await self._request(job.name, dump.number)
        if request is None or request.attempt != job.attempt or host not in request.hosts:
            raise WireError("NotFound", f"dump {dump.number} of {job.name} is not wanted", http_status=404)
        await self._documents.put(job.name, request.number, {host: to_plain(dump)})
        present = self._present(job)
        if present is not None and present.number == request.number:
            self._answered[job.name, job.attempt].add(host)

    async def numbers(self, job_name: str) -> list[int]:
        """Return the numbers of a job's dumps, the newest first."""
        return await self._documents.numbers(job_name)

    async def missing(self, job_name: str, number: int) -> list[str] | None:
        """Return the hosts that have not answered a request, or None if no request has this number."""
        request = await self._request(job_name, number)
        if request is None:
            return None
        answered = set(await self._documents.names(job_name, number))
        return [host for host in request.hosts if host not in answered]

    async def read(self, job_name: str, number: int) -> tuple[DumpRequest, dict[str, HostDump]] | None:
        """Return the request of a dump and the answers by host, or None if no dump has this number."""
        return await asyncio.to_thread(_built, await self._documents.read(job_name, number))

    def waited_s(self, job: TrainingJob, request: DumpRequest) -> float:
        """Return the seconds since the attempt's newest request; infinity if `request` is not the newest."""
        asked_s, newest = self._wanted.get((job.name, job.attempt), (0.0, None))
        if newest is None or newest.number != request.number:
            return math.inf
        return self._clock.monotonic() - asked_s

    def want_no_more(self, job_name: str) -> None:
        """Drop the open requests to hosts of a job, because the hosts have ended."""
        for key in [key for key in self._wanted if key[0] == job_name]:
            del self._wanted[key], self._answered[key]

    def _present(self, job: TrainingJob) -> DumpRequest | None:
        asked_s, request = self._wanted.get((job.name, job.attempt), (0.0, None))
        return request if request is not None and self._clock.monotonic() - asked_s < WANTED_S else None

    async def _request(self, job_name: str, number: int) -> DumpRequest | None:
        return built(DumpRequest, await self._documents.read_one(job_name, number, REQUEST))


def _built(documents: Mapping[str, Any]) -> tuple[DumpRequest, dict[str, HostDump]] | None:
    request = built(DumpRequest, documents.get(REQUEST))
    if request is None:
        return None
    answers = ((host, built(HostDump, documents.get(host))) for host in request.hosts)
    return request, {host: dump for host, dump in answers if dump is not None}
