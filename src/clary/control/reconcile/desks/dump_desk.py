"""Dumps of jobs' processes: asked for, taken in, kept.

Where: the agent gateway tells agents what is wanted and hands over what they send; the page `dump` of a job reads it.
Kept as files, `<home>/dumps/JOB/NUMBER/HOST.json`, the newest `NUM_KEPT` of each job.
"""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from clary.base.clock import Clock
from clary.base.errors import ContractError, WireError
from clary.base.plain import from_plain, to_plain
from clary.contract.stack_dumps import HostDump
from clary.control.jobs.training_job import TrainingJob

NUM_KEPT = 10
WANTED_S = 60.0  # a host that has not answered by then will not
_REQUEST = "request.json"

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class DumpRequest:
    """One dump of all hosts of an attempt; `number` grows."""

    number: int
    reason: str
    attempt: int
    hosts: tuple[str, ...]
    asked_at: datetime


class DumpDesk:
    """Keeps dumps below one folder; its files are small, and few at a time.

    Args:
        folder: holds one folder a job.
    """

    def __init__(self, folder: Path, *, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._wanted: dict[tuple[str, int], tuple[float, DumpRequest]] = {}  # job, attempt -> when, what
        self._answered: dict[tuple[str, int], set[str]] = {}  # the same -> hosts

    def ask(self, job: TrainingJob, reason: str) -> DumpRequest:
        """Want a dump of every host of a job; each is told with its next report.

        Who asks while hosts still owe an answer to another gets that one.
        """
        present = self._present(job)
        if present is not None and not self._answered[job.name, job.attempt].issuperset(present.hosts):
            return present
        now = self._clock.now()
        numbers = self.numbers(job.name)
        request = DumpRequest(
            number=max(int(now.timestamp() * 1000), numbers[0] + 1 if numbers else 0),
            reason=reason,
            attempt=job.attempt,
            hosts=tuple(job.hosts),
            asked_at=now,
        )
        _write(self._place(job.name, request.number) / _REQUEST, to_plain(request))
        for number in self.numbers(job.name)[NUM_KEPT:]:
            shutil.rmtree(self._place(job.name, number), ignore_errors=True)
        self._wanted[job.name, job.attempt] = (self._clock.monotonic(), request)
        self._answered[job.name, job.attempt] = set()
        return request

    def wanted(self, job: TrainingJob, host: str) -> DumpRequest | None:
        """Return what a host is asked for and has not sent."""
        request = self._present(job)
        return None if request is None or host in self._answered[job.name, job.attempt] else request

    def take(self, job: TrainingJob, host: str, dump: HostDump) -> None:
        """Keep a dump; one that nobody has asked for becomes a request to the job's other hosts.

        Raises: WireError 404 for the answer to a request that is not, or no longer, wanted.
        """
        if dump.number == 0:
            request: DumpRequest | None = self._present(job) or self.ask(job, f"{host}: {dump.reason}")
        else:
            request = _read(DumpRequest, self._place(job.name, dump.number) / _REQUEST)
        if request is None or request.attempt != job.attempt or host not in request.hosts:
            raise WireError("NotFound", f"dump {dump.number} of {job.name} is not wanted", http_status=404)
        _write(self._place(job.name, request.number) / f"{host}.json", to_plain(dump))
        present = self._present(job)
        if present is not None and present.number == request.number:
            self._answered[job.name, job.attempt].add(host)

    def numbers(self, job_name: str) -> list[int]:
        """Return the numbers of a job's dumps, the newest first."""
        try:
            names = [path.name for path in (self._folder / job_name).iterdir()]
        except OSError:
            return []
        return sorted((int(name) for name in names if name.isdecimal()), reverse=True)

    def missing(self, job_name: str, number: int) -> list[str] | None:
        """Return the hosts that have not answered a request; None if there is none of this number."""
        folder = self._place(job_name, number)
        request = _read(DumpRequest, folder / _REQUEST)
        return None if request is None else [host for host in request.hosts if not (folder / f"{host}.json").exists()]

    def read(self, job_name: str, number: int) -> tuple[DumpRequest, dict[str, HostDump]] | None:
        """Return a dump with what hosts have answered, by host; None if there is none of this number."""
        folder = self._place(job_name, number)
        request = _read(DumpRequest, folder / _REQUEST)
        if request is None:
            return None
        answers = ((host, _read(HostDump, folder / f"{host}.json")) for host in request.hosts)
        return request, {host: dump for host, dump in answers if dump is not None}

    def waited_s(self, job: TrainingJob, request: DumpRequest) -> float:
        """Return for how long answers to a request have been waited for; without end for one that nobody owes."""
        asked_s, newest = self._wanted.get((job.name, job.attempt), (0.0, None))
        if newest is None or newest.number != request.number:
            return math.inf
        return self._clock.monotonic() - asked_s

    def forget(self, job_name: str) -> None:
        """Remove the dumps of a job that was deleted."""
        shutil.rmtree(self._folder / job_name, ignore_errors=True)
        self.want_no_more(job_name)

    def want_no_more(self, job_name: str) -> None:
        """Drop what hosts of a job still owe: they are gone."""
        for key in [key for key in self._wanted if key[0] == job_name]:
            del self._wanted[key], self._answered[key]

    def _present(self, job: TrainingJob) -> DumpRequest | None:
        asked_s, request = self._wanted.get((job.name, job.attempt), (0.0, None))
        return request if request is not None and self._clock.monotonic() - asked_s < WANTED_S else None

    def _place(self, job_name: str, number: int) -> Path:
        return self._folder / job_name / str(number)


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
