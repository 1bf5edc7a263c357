"""Requests for profiles of jobs' ranks, and the answers.

Where: the agent gateway passes requests to agents and their answers back; `profile_keeping` summarises complete
profiles; the page `profile` of a job reads them. The newest `NUM_KEPT` profiles of each job are kept. The database
contains the request (KeptRequest), one HostProfile per host, and the summary. Traces are files, because a trace may
have hundreds of megabytes. Hosts' programs write the traces: their number and the bytes of a profile are bounded.

    <home>/profiles/JOB/NUMBER/rank-R.trace.json.gz    unchanged, from the rank
    <home>/profiles/JOB/NUMBER/request.json, HOST.json    copies of the documents, for `clary.control.traces`
    <home>/profiles/JOB/NUMBER/summary.json, merged.trace.json.gz    written by `clary.control.traces`
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from clary.base.clock import Clock
from clary.base.errors import WireError
from clary.base.plain import to_plain
from clary.contract.deep_profiles import (
    MAX_PROFILE_BYTES,
    MAX_TRACE_BYTES,
    MAX_WAIT_S,
    MAX_WINDOW_S,
    HostProfile,
    ProfileRequest,
    Window,
    window_of,
)
from clary.control.jobs.training_job import TrainingJob
from clary.control.store.documents.numbered_documents import REQUEST, NumberedDocuments, built

NUM_KEPT = 5
LEAD_S = 2.5  # from the request to the first profiled step, so that every host has received the request
ANSWER_S = MAX_WAIT_S + MAX_WINDOW_S + 180.0  # for the whole profile; a host that has not answered by then is given up
MAX_RANKS = 4096  # of one host
BY_CONFIG = "asked for by ProfilerConfig"
SUMMARY = "summary"


@dataclass(frozen=True, kw_only=True)
class KeptRequest:
    """One profile of an attempt; `number` grows.

    Attributes:
        number: the attempt's number for a request by ProfilerConfig; else milliseconds since 1970.
        is_open_ended: whether the profile waits without a limit for its first step or start time.
    """

    number: int
    reason: str
    attempt: int
    hosts: tuple[str, ...]
    asked_at: datetime
    asked: ProfileRequest
    is_open_ended: bool = False


class ProfileDesk:
    """Requests profiles from ranks and stores their answers; all methods must run in one event loop.

    Args:
        documents: stored documents of the kind "profiles".
        folder: contains one folder per job, for traces.
        clock: dates requests, and measures the time that a request is open.
    """

    def __init__(self, documents: NumberedDocuments, folder: Path, *, clock: Clock) -> None:
        self._documents = documents
        self._asking = asyncio.Lock()
        self._folder = folder
        self._clock = clock
        self._wanted: dict[tuple[str, int], KeptRequest] = {}  # job, attempt -> newest request for agents
        self.open: dict[tuple[str, int], KeptRequest] = {}  # job, number -> request without a summary yet
        self._since_s: dict[tuple[str, int], float] = {}  # job, number -> monotonic time of the request, or of `load`

    async def ask(
        self, job: TrainingJob, window: Window, *, reason: str, ranks: tuple[int, ...] = (), waits: bool = False
    ) -> KeptRequest:
        """Request a profile of a job's ranks; each host gets the request in the answer to its next report.

        While a profile is being taken, an equal request returns the existing request.

        Args:
            job: a job with hosts.
            window: steps or seconds to profile.
            reason: reason of the request, for users.
            ranks: ranks to profile; empty for all.
            waits: whether the profile waits without a limit for its first step or start time; otherwise it waits at
                most `MAX_WAIT_S`.
        Raises: WireError while a different profile is being taken; JobNotFound for a job that was deleted.
        """
        async with self._asking:
            return await self._ask(job, window, reason=reason, ranks=ranks, waits=waits)

    async def _ask(
        self, job: TrainingJob, window: Window, *, reason: str, ranks: tuple[int, ...], waits: bool
    ) -> KeptRequest:
        now = self._clock.now()
        numbers = await self.numbers(job.name)
        asked = ProfileRequest(
            number=max(int(now.timestamp() * 1000), numbers[0] + 1 if numbers else 0),
            num_steps=window.num_steps,
            start_step=window.start_step,
            start_at=window.start_at or now.timestamp() + LEAD_S,
            give_up_at=0.0 if waits else now.timestamp() + MAX_WAIT_S,
            duration_s=window.duration_s,
            ranks=ranks,
        )
        present = self._wanted.get((job.name, job.attempt))
        if present is not None and (job.name, present.number) in self.open and not await self._is_whole(job, present):
            same = replace(present.asked, number=0, start_at=0, give_up_at=0)
            if same == replace(asked, number=0, start_at=0, give_up_at=0):
                return present
            steps = f"{present.asked.num_steps} steps" if present.asked.num_steps else f"{present.asked.duration_s:g} s"
            raise WireError(
                "ResourceInUse",
                f"another profile of {job.name} is being taken ({present.number}: {steps}): wait for it, "
                f"or end it with: clary profile {job.name} --cancel",
            )
        request = KeptRequest(
            number=asked.number,
            reason=reason,
            attempt=job.attempt,
            hosts=tuple(job.hosts),
            asked_at=now,
            asked=asked,
            is_open_ended=waits,
        )
        await self._keep(job.name, request)
        self._wanted[job.name, job.attempt] = request
        return request

    async def cancel(self, job: TrainingJob) -> KeptRequest | None:
        """End a job's newest incomplete profile early, keeping its records; return its request, or None without one.

        A profile whose request was closed is not reopened: it is summarised already, without the missing answers.
        """
        present = self._wanted.get((job.name, job.attempt))
        if present is not None and (job.name, present.number) not in self.open:
            present = None
        own = self._own_request(job)
        if present is None and own is not None and await self.summary(job.name, own.number) is None:
            present = own
        if present is None or await self._is_whole(job, present):
            return None
        ended = replace(present, asked=replace(present.asked, is_cancelled=True))
        await self._documents.put(job.name, ended.number, {REQUEST: to_plain(ended)})
        self._wanted[job.name, job.attempt] = self.open[job.name, ended.number] = ended
        return ended

    def wanted(self, job: TrainingJob, host: str) -> ProfileRequest | None:
        """Return the attempt's newest request while it is open, else None; hosts that have answered also get it."""
        request = self._wanted.get((job.name, job.attempt))
        if request is None or (job.name, request.number) not in self.open:
            return None
        return request.asked

    async def take(self, job: TrainingJob, host: str, profile: HostProfile) -> None:
        """Store a host's report on its ranks. Raises: WireError 404 for an unknown profile, 400 for too many ranks.

        Args:
            job: job whose current attempt was profiled.
            host: host that reports.
            profile: its complete report so far; replaces its earlier report.
        """
        request = await self._request_for(job, host, profile.number)
        if len(profile.ranks) > MAX_RANKS:
            raise WireError("ValidationException", f"{host} cannot have {len(profile.ranks)} ranks")
        await self._documents.put(job.name, request.number, {host: to_plain(replace(profile, host=host))})

    async def take_piece(
        self, job: TrainingJob, host: str, piece: bytes, *, number: int, rank: int, offset: int, is_last: bool
    ) -> None:
        """Store a part of a trace; a part may be sent again. Raises: WireError.

        Args:
            job: job whose current attempt was profiled.
            host: host that sends.
            piece: bytes of the compressed trace.
            number: number of the profile.
            rank: rank whose trace is sent.
            offset: offset of the piece in the trace, in bytes; stored bytes from there on are replaced.
            is_last: whether the piece completes the trace.
        """
        request = await self._request_for(job, host, number)
        if offset + len(piece) > MAX_TRACE_BYTES:
            raise WireError("ValidationException", f"a trace has at most {MAX_TRACE_BYTES} bytes")
        draft = self.place(job.name, request.number) / f".{host}-rank-{rank}.part"
        await asyncio.to_thread(
            _add,
            piece,
            draft,
            offset=offset,
            name=trace_name(rank) if is_last else "",
            most_traces=MAX_RANKS * len(request.hosts),
        )

    async def numbers(self, job_name: str) -> list[int]:
        """Return the numbers of a job's profiles, the newest first."""
        return await self._documents.numbers(job_name)

    async def read(self, job_name: str, number: int) -> tuple[KeptRequest, dict[str, HostProfile]] | None:
        """Return the request of a profile and the answers by host, or None if no profile has this number."""
        return await asyncio.to_thread(_built, await self._documents.read(job_name, number))

    async def list(self, job_name: str) -> list[tuple[KeptRequest, bool]]:
        """Return all profile requests of a job, newest first, each with whether it has a summary; reads no answers."""
        found = [(number, await self._documents.names(job_name, number)) for number in await self.numbers(job_name)]
        requests = [(await self.request(job_name, number), SUMMARY in names) for number, names in found]
        return [(request, is_over) for request, is_over in requests if request is not None]

    async def request(self, job_name: str, number: int) -> KeptRequest | None:
        """Return the request of a profile; None if no profile has this number."""
        return built(KeptRequest, await self._documents.read_one(job_name, number, REQUEST))

    async def summary(self, job_name: str, number: int) -> dict[str, Any] | None:
        """Return the summary of a profile's traces; None before the traces were read."""
        found = await self._documents.read_one(job_name, number, SUMMARY)
        return found if isinstance(found, dict) else None

    async def keep_summary(self, job_name: str, number: int, summary: dict[str, Any]) -> None:
        """Store the summary of a profile's traces.

        Args:
            job_name: name of a stored job.
            number: number of the profile.
            summary: document for the page, written by `control.traces`.
        Raises: JobNotFound for a job that was deleted.
        """
        await self._documents.put(job_name, number, {SUMMARY: summary})

    async def lay_out(self, job_name: str, number: int) -> Path | None:
        """Copy a profile's documents into the folder of its traces; return the folder, None without such a profile."""
        found = await self._documents.read(job_name, number)
        folder = self.place(job_name, number)
        if REQUEST not in found:
            return None
        for name, document in found.items():
            await asyncio.to_thread(_write, folder / f"{name}.json", document)
        return folder

    async def is_ready(self, job: TrainingJob | None, request: KeptRequest) -> bool:
        """Whether a profile is complete: each host has sent its final report or is given up, or the attempt is over."""
        if job is None or job.is_terminal or job.attempt != request.attempt:
            return True
        since_s = self._since_s.setdefault((job.name, request.number), self._clock.monotonic())
        age_s = self._clock.monotonic() - since_s
        return (not request.is_open_ended and age_s > ANSWER_S) or await self._is_whole(job, request)

    def close_request(self, job_name: str, number: int) -> None:
        """Close the request of a profile that is about to be summarised, or was removed."""
        self.open.pop((job_name, number), None)
        self._since_s.pop((job_name, number), None)

    async def load(self) -> None:
        """Reopen an earlier service's profiles that have no summary."""
        for name, number, document in await self._documents.read_named(REQUEST, without=SUMMARY):
            request = built(KeptRequest, document)
            if request is not None:
                self.open[name, number] = request
                self._since_s[name, number] = self._clock.monotonic()
                self._wanted.setdefault((name, request.attempt), request)

    async def forget(self, job_name: str) -> None:
        """Remove the traces of a job that is being deleted; the database deletes documents with the job's row."""
        await asyncio.to_thread(shutil.rmtree, self._folder / job_name, ignore_errors=True)
        for job, number in [key for key in self.open if key[0] == job_name]:
            self.close_request(job, number)
        for key in [key for key in self._wanted if key[0] == job_name]:
            del self._wanted[key]

    def place(self, job_name: str, number: int) -> Path:
        """Return the folder of a profile."""
        return self._folder / job_name / str(number)

    async def _keep(self, job_name: str, request: KeptRequest) -> None:
        before = await self.numbers(job_name)
        await self._documents.put(job_name, request.number, {REQUEST: to_plain(request)}, keep=NUM_KEPT)
        self.open[job_name, request.number] = request
        self._since_s[job_name, request.number] = self._clock.monotonic()
        for number in set(before).difference(await self.numbers(job_name)):
            await asyncio.to_thread(shutil.rmtree, self.place(job_name, number), ignore_errors=True)
            self.close_request(job_name, number)

    async def _request_for(self, job: TrainingJob, host: str, number: int) -> KeptRequest:
        """Return the request that a host answers; the first answer creates the request by ProfilerConfig."""
        request = await self.request(job.name, number)
        if request is None and number == job.attempt:
            request = self._own_request(job)
            if request is not None:
                await self._keep(job.name, request)
        if request is None or request.attempt != job.attempt or host not in request.hosts:
            raise WireError("NotFound", f"profile {number} of {job.name} is not wanted", http_status=404)
        return request

    def _own_request(self, job: TrainingJob) -> KeptRequest | None:
        """Return the request made by ProfilerConfig, valid from the attempt's beginning; None if it names no window."""
        config = ((job.plan or {}).get("config_documents") or {}).get("profilerconfig")
        window = window_of(config)
        if window is None:
            return None
        return KeptRequest(
            number=job.attempt,
            reason=BY_CONFIG,
            attempt=job.attempt,
            hosts=tuple(job.hosts),
            asked_at=self._clock.now(),
            asked=ProfileRequest(
                number=job.attempt,
                num_steps=window.num_steps,
                start_step=window.start_step,
                start_at=window.start_at,
                duration_s=window.duration_s,
            ),
            is_open_ended=True,
        )

    async def _is_whole(self, job: TrainingJob, request: KeptRequest) -> bool:
        found = await self.read(job.name, request.number)
        answers = {} if found is None else found[1]
        return all(host in answers and answers[host].is_final for host in request.hosts)


def trace_name(rank: int) -> str:
    """Return the name of a rank's trace in the folder of a profile."""
    return f"rank-{rank}.trace.json.gz"


def _built(documents: Mapping[str, Any]) -> tuple[KeptRequest, dict[str, HostProfile]] | None:
    request = built(KeptRequest, documents.get(REQUEST))
    if request is None:
        return None
    answers = ((host, built(HostProfile, documents.get(host))) for host in request.hosts)
    return request, {host: profile for host, profile in answers if profile is not None}


def _add(piece: bytes, draft: Path, *, offset: int, name: str, most_traces: int) -> None:
    """Write a part of a trace into its draft; with `name`, rename the complete draft.

    Args:
        piece: bytes of the trace.
        draft: file of the incomplete trace.
        offset: of the piece in the trace, in bytes.
        name: final name of the trace; empty before its last piece.
        most_traces: number of traces that the profile may have.
    Raises: WireError for a gap, and for a profile that becomes too large.
    """
    draft.parent.mkdir(parents=True, exist_ok=True)
    sizes = _other_traces(draft)
    if sum(sizes) + offset + len(piece) > MAX_PROFILE_BYTES:
        raise WireError("ValidationException", f"the traces of a profile have at most {MAX_PROFILE_BYTES} bytes")
    if len(sizes) >= most_traces:
        raise WireError("ValidationException", f"a profile of these hosts has at most {most_traces} traces")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "wb") as file:
        size = os.fstat(file.fileno()).st_size
        if offset > size:
            raise WireError(
                "ValidationException", f"the stored trace has {size} bytes, so its next part cannot start at {offset}"
            )
        file.truncate(offset)
        file.seek(offset)
        file.write(piece)
    if name:
        draft.replace(draft.with_name(name))


def _other_traces(draft: Path) -> list[int]:
    """Return the sizes of the other traces in a draft's folder, complete or not."""
    sizes = []
    with os.scandir(draft.parent) as entries:
        for entry in entries:
            if entry.name.startswith((".", "rank-")) and entry.name != draft.name:
                with contextlib.suppress(FileNotFoundError):  # it has just been completed: the next part finds it
                    sizes.append(entry.stat().st_size)
    return sizes


def _write(path: Path, document: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(document), encoding="utf-8", errors="surrogatepass")
    draft.replace(path)
