"""Profiles of jobs' ranks: asked for, taken in, kept.

Where: the agent gateway tells agents what is wanted and hands over what they send; `profile_keeping` has what is whole
looked at; the page `profile` of a job reads it. Kept as files, the newest `NUM_KEPT` of each job:

    <home>/profiles/JOB/NUMBER/request.json            KeptRequest
    <home>/profiles/JOB/NUMBER/HOST.json               HostProfile
    <home>/profiles/JOB/NUMBER/rank-R.trace.json.gz    as the rank wrote it
    <home>/profiles/JOB/NUMBER/summary.json, merged.trace.json.gz    `clary.control.traces`
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from clary.base.clock import Clock
from clary.base.errors import ContractError, WireError
from clary.base.plain import from_plain, to_plain
from clary.contract.deep_profiles import (
    MAX_TRACE_BYTES,
    MAX_WAIT_S,
    MAX_WINDOW_S,
    HostProfile,
    ProfileRequest,
    Window,
    window_of,
)
from clary.control.jobs.training_job import TrainingJob

NUM_KEPT = 5
LEAD_S = 2.5  # from the request to the first step: every host has heard of it by then
ANSWER_S = MAX_WAIT_S + MAX_WINDOW_S + 180.0  # for all of it; a host that has not answered by then will not
MAX_RANKS = 4096  # of a host's answer
BY_CONFIG = "asked for by ProfilerConfig"
SUMMARY, MERGED, _REQUEST = "summary.json", "merged.trace.json.gz", "request.json"

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class KeptRequest:
    """One profile of an attempt; `number` grows.

    Attributes:
        number: the attempt's, of what ProfilerConfig asked for when it began; else milliseconds since 1970.
        is_open_ended: whether it may begin whenever its step or time comes.
    """

    number: int
    reason: str
    attempt: int
    hosts: tuple[str, ...]
    asked_at: datetime
    asked: ProfileRequest
    is_open_ended: bool = False


class ProfileDesk:
    """Keeps profiles below one folder.

    Args:
        folder: holds one folder a job.
    """

    def __init__(self, folder: Path, *, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._wanted: dict[tuple[str, int], KeptRequest] = {}  # job, attempt -> newest that agents are told of
        self.open: dict[tuple[str, int], KeptRequest] = {}  # job, number -> not yet looked at
        self._since_s: dict[tuple[str, int], float] = {}  # the same -> asked for, or known to this service; monotonic

    def ask(
        self, job: TrainingJob, window: Window, *, reason: str, ranks: tuple[int, ...] = (), waits: bool = False
    ) -> KeptRequest:
        """Want a profile of a job's ranks; each host is told with its next report.

        Who asks for the same while one is being taken gets that one.

        Args:
            waits: whether it may begin whenever its step or time comes; else within `MAX_WAIT_S`.
        Raises: WireError while a different one is being taken.
        """
        now = self._clock.now()
        numbers = self.numbers(job.name)
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
        if present is not None and (job.name, present.number) in self.open and not self._is_whole(job, present):
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
        self._keep(job.name, request)
        self._wanted[job.name, job.attempt] = request
        return request

    def cancel(self, job: TrainingJob) -> KeptRequest | None:
        """End the newest profile of a job where it stands; return it, None if there is none that could be ended."""
        present = self._wanted.get((job.name, job.attempt))
        own = self._own_request(job)
        if present is None and own is not None and (job.name, own.number) not in self._done(job.name):
            present = own
        if present is None or self._is_whole(job, present):
            return None
        ended = replace(present, asked=replace(present.asked, is_cancelled=True))
        _write(self.place(job.name, ended.number) / _REQUEST, to_plain(ended))
        self._wanted[job.name, job.attempt] = self.open[job.name, ended.number] = ended
        return ended

    def wanted(self, job: TrainingJob, host: str) -> ProfileRequest | None:
        """Return what a host is asked for and has not answered finally."""
        request = self._wanted.get((job.name, job.attempt))
        if request is None or (job.name, request.number) not in self.open:
            return None
        return request.asked

    def take(self, job: TrainingJob, host: str, profile: HostProfile) -> None:
        """Keep what a host's ranks say. Raises: WireError 404 for what is not wanted, 400 for what cannot be."""
        request = self._request_for(job, host, profile.number)
        if len(profile.ranks) > MAX_RANKS:
            raise WireError("ValidationException", f"{host} cannot have {len(profile.ranks)} ranks")
        _write(self.place(job.name, request.number) / f"{host}.json", to_plain(replace(profile, host=host)))

    def take_piece(
        self, job: TrainingJob, host: str, piece: bytes, *, number: int, rank: int, offset: int, is_last: bool
    ) -> None:
        """Keep a part of a trace; the same part may come again. Raises: WireError."""
        request = self._request_for(job, host, number)
        if offset + len(piece) > MAX_TRACE_BYTES:
            raise WireError("ValidationException", f"a trace has at most {MAX_TRACE_BYTES} bytes")
        folder = self.place(job.name, request.number)
        draft = folder / f".{host}-rank-{rank}.part"
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "wb") as file:
            size = os.fstat(file.fileno()).st_size
            if offset > size:
                raise WireError("ValidationException", f"the trace goes on at {size}, and not at {offset}")
            file.truncate(offset)
            file.seek(offset)
            file.write(piece)
        if is_last:
            draft.replace(folder / trace_name(rank))

    def numbers(self, job_name: str) -> list[int]:
        """Return the numbers of a job's profiles, the newest first."""
        try:
            names = [path.name for path in (self._folder / job_name).iterdir()]
        except OSError:
            return []
        return sorted((int(name) for name in names if name.isdecimal()), reverse=True)

    def read(self, job_name: str, number: int) -> tuple[KeptRequest, dict[str, HostProfile]] | None:
        """Return a profile with what hosts have said, by host; None if there is none of this number."""
        folder = self.place(job_name, number)
        request = self.request(job_name, number)
        if request is None:
            return None
        answers = ((host, _read(HostProfile, folder / f"{host}.json")) for host in request.hosts)
        return request, {host: profile for host, profile in answers if profile is not None}

    def request(self, job_name: str, number: int) -> KeptRequest | None:
        """Return what was asked for; None if there is no profile of this number."""
        return _read(KeptRequest, self.place(job_name, number) / _REQUEST)

    def summary(self, job_name: str, number: int) -> dict[str, Any] | None:
        """Return what was read from the traces; None before that."""
        try:
            found = json.loads((self.place(job_name, number) / SUMMARY).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def is_ready(self, job: TrainingJob | None, request: KeptRequest) -> bool:
        """Whether nothing more comes of a profile: every host has said its last, or will not."""
        if job is None or job.is_terminal or job.attempt != request.attempt:
            return True
        since_s = self._since_s.setdefault((job.name, request.number), self._clock.monotonic())
        age_s = self._clock.monotonic() - since_s
        return self._is_whole(job, request) or (not request.is_open_ended and age_s > ANSWER_S)

    def close_request(self, job_name: str, number: int) -> None:
        """Take note that a profile was looked at."""
        self.open.pop((job_name, number), None)
        self._since_s.pop((job_name, number), None)

    def load(self) -> None:
        """Take up what an earlier service has left without a summary."""
        for path in self._folder.glob(f"*/*/{_REQUEST}"):
            if not (path.parent / SUMMARY).exists() and path.parent.name.isdecimal():
                request = _read(KeptRequest, path)
                if request is not None:
                    name = path.parent.parent.name
                    self.open[name, request.number] = request
                    self._since_s[name, request.number] = self._clock.monotonic()
                    self._wanted.setdefault((name, request.attempt), request)

    def forget(self, job_name: str) -> None:
        """Remove the profiles of a job that was deleted."""
        shutil.rmtree(self._folder / job_name, ignore_errors=True)
        for job, number in [key for key in self.open if key[0] == job_name]:
            self.close_request(job, number)
        for key in [key for key in self._wanted if key[0] == job_name]:
            del self._wanted[key]

    def place(self, job_name: str, number: int) -> Path:
        """Return the folder of a profile."""
        return self._folder / job_name / str(number)

    def _keep(self, job_name: str, request: KeptRequest) -> None:
        _write(self.place(job_name, request.number) / _REQUEST, to_plain(request))
        self.open[job_name, request.number] = request
        self._since_s[job_name, request.number] = self._clock.monotonic()
        old = [number for number in self.numbers(job_name)[NUM_KEPT:] if number != request.number]
        for number in old:
            shutil.rmtree(self.place(job_name, number), ignore_errors=True)
            self.close_request(job_name, number)

    def _request_for(self, job: TrainingJob, host: str, number: int) -> KeptRequest:
        """Return the request that a host answers; of the job's own, the first answer makes it."""
        request = _read(KeptRequest, self.place(job.name, number) / _REQUEST)
        if request is None and number == job.attempt:
            request = self._own_request(job)
            if request is not None:
                self._keep(job.name, request)
        if request is None or request.attempt != job.attempt or host not in request.hosts:
            raise WireError("NotFound", f"profile {number} of {job.name} is not wanted", http_status=404)
        return request

    def _own_request(self, job: TrainingJob) -> KeptRequest | None:
        """Return what the job's ProfilerConfig asked for when its attempt began."""
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

    def _done(self, job_name: str) -> set[tuple[str, int]]:
        return {(job_name, number) for number in self.numbers(job_name) if self.summary(job_name, number) is not None}

    def _is_whole(self, job: TrainingJob, request: KeptRequest) -> bool:
        found = self.read(job.name, request.number)
        answers = {} if found is None else found[1]
        return all(host in answers and answers[host].is_final for host in request.hosts)


def trace_name(rank: int) -> str:
    """Return the name of a rank's trace in the folder of a profile."""
    return f"rank-{rank}.trace.json.gz"


def _write(path: Path, document: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(document), encoding="utf-8", errors="surrogatepass")
    draft.replace(path)


def _read(cls: type[T], path: Path) -> T | None:
    try:
        return from_plain(cls, json.loads(path.read_text(encoding="utf-8", errors="surrogatepass")))
    except (OSError, ValueError, ContractError):
        return None
