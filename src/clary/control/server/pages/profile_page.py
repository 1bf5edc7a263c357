"""The page `profile` of a job: requests, monitors and shows profiles of its ranks, and sends their files."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clary.base.errors import WireError
from clary.base.plain import to_plain
from clary.contract.agent_protocol import HostPhase
from clary.contract.deep_profiles import MAX_STEPS, MAX_WINDOW_S, Window
from clary.control.jobs.training_job import TrainingJob
from clary.control.reconcile.desks.profile_desk import KeptRequest
from clary.control.services.call import Services
from clary.control.wire.messages import HttpResponse

ASKED_BY_PERSON = "asked for"
MAX_ASKED_RANKS = 1024
MAX_FILE_BYTES = 512 * 1024 * 1024  # largest file that is sent in one answer
_NUMBER = re.compile(r"[0-9]{1,18}")
_FILE = re.compile(r"summary\.json|merged\.trace\.json\.gz|rank-[0-9]{1,9}\.trace\.json\.gz")
_OCTETS = [("Content-Type", "application/octet-stream")]


async def ask_for_profile(services: Services, job: TrainingJob, body: Any) -> dict[str, Any]:
    """Request a profile from ranks of a running job, or end the current profile; return before the ranks act.

    Args:
        body: `steps` or `seconds`, `ranks` and `start_step` if wanted; or `cancel`.
    Raises: WireError for a job whose program does not run, for invalid values, and while another profile is being
    taken.
    """
    asked = body if isinstance(body, Mapping) else {}
    if asked.get("cancel"):
        ended = await services.profiles.cancel(job)
        if ended is None:
            raise WireError("ValidationException", f"no profile of {job.name} is being taken")
        return {"number": ended.number}
    running = [name for name, record in job.hosts.items() if record.facts.phase is HostPhase.RUNNING]
    if job.is_terminal or not running:
        raise WireError(
            "ValidationException",
            f"no program of {job.name} is running ({job.status.value}, {job.secondary_status.value}); "
            f"older profiles are shown by: clary profile {job.name} --last",
        )
    ranks = _ranks(job, asked.get("ranks"))
    request = await services.profiles.ask(job, _window(asked), reason=ASKED_BY_PERSON, ranks=ranks)
    return {"number": request.number}


async def profile_page(services: Services, job: TrainingJob, query: Mapping[str, str]) -> dict[str, Any] | HttpResponse:
    """Return the newest profile, or the profile with the query's `number`; with `file`, only this file of the profile.

    Args:
        services: store the profiles.
        job: job of the profiles, which may have ended.
        query: `number` and `file`; both may be missing.
    Raises: WireError 404 if there is no such profile or file, 400 for a file that is too large for one answer.
    """
    desk = services.profiles
    numbers = await desk.numbers(job.name)
    wanted = query.get("number", str(numbers[0]) if numbers else "")
    number = int(wanted) if _NUMBER.fullmatch(wanted) else -1
    found = await desk.read(job.name, number)
    if found is None:
        having = f"there are {', '.join(map(str, numbers))}" if numbers else "none was taken"
        raise WireError(
            "NotFound", f"{job.name} has no profile {wanted[:20]}".rstrip() + f"; {having}", http_status=404
        )
    folder = desk.place(job.name, number)
    if "file" in query:
        return await _file(folder, query["file"])
    request, answers = found
    summary = await desk.summary(job.name, number)
    return {
        "job": job.name,
        "status": job.status.value,
        "numbers": numbers,
        "profiles": [_brief(kept, is_over=is_over) for kept, is_over in await desk.list(job.name)],
        **to_plain(request),
        "is_over": summary is not None,
        "ended": _end_of(job) if job.is_terminal or job.attempt != request.attempt else "",
        "missing": [host for host in request.hosts if host not in answers or not answers[host].is_final],
        "states": [
            {"rank": rank.rank, "host": host, "state": rank.state.value, "words": rank.words, "step": rank.step}
            for host, answer in answers.items()
            for rank in answer.ranks
        ],
        "errors": [answer.error for answer in answers.values() if answer.error],
        "folder": str(folder),
        "summary": summary,
    }


def _brief(kept: KeptRequest, *, is_over: bool) -> dict[str, Any]:
    return {
        "number": kept.number,
        "attempt": kept.attempt,
        "reason": kept.reason,
        "asked_at": to_plain(kept.asked_at),
        "num_steps": kept.asked.num_steps,
        "duration_s": kept.asked.duration_s,
        "is_over": is_over,
    }


def _window(asked: Mapping[str, Any]) -> Window:
    steps, seconds, start = asked.get("steps"), asked.get("seconds"), asked.get("start_step")
    if start is not None and not (_is_number(start) and int(start) == start and start >= 0):
        raise WireError("ValidationException", f"start_step is the number of a step, got {str(start)[:40]}")
    start = None if start is None else int(start)  # agents do not accept 5.0
    if seconds is not None:
        if not _is_number(seconds) or not 0 < seconds <= MAX_WINDOW_S:
            raise WireError(
                "ValidationException",
                f"a profile lasts more than 0 and at most {MAX_WINDOW_S:g} seconds, got {str(seconds)[:40]}",
            )
        return Window(start_step=start, num_steps=0, duration_s=float(seconds))
    if steps is None or not _is_number(steps) or int(steps) != steps or not 0 < steps <= MAX_STEPS:
        raise WireError("ValidationException", f"a profile has 1 to {MAX_STEPS} steps, got {str(steps)[:40]}")
    return Window(start_step=start, num_steps=int(steps))


def _ranks(job: TrainingJob, asked: Any) -> tuple[int, ...]:
    if not asked:
        return ()
    if not isinstance(asked, list) or len(asked) > MAX_ASKED_RANKS or not all(_is_rank(item) for item in asked):
        raise WireError("ValidationException", f"ranks are numbers from 0, at most {MAX_ASKED_RANKS} of them")
    hosts = (job.plan or {"hosts": []})["hosts"]
    num_ranks = sum(host["processes_per_host"] for host in hosts)
    beyond = [rank for rank in asked if rank >= num_ranks]
    if beyond and num_ranks > len(hosts):  # a user's own launcher may start more processes than the plan contains
        raise WireError("ValidationException", f"{job.name} has ranks 0 to {num_ranks - 1}, and not {beyond[0]}")
    return tuple(sorted(set(asked)))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15  # also refuses NaN


def _is_rank(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1_000_000


def _end_of(job: TrainingJob) -> str:
    """Return why a profile will get no more results."""
    reason = f": {job.failure.reason}" if job.failure is not None else ""
    if job.is_terminal:
        return f"{job.name} has ended ({job.status.value}{reason})"
    past = job.past_attempts[-1].reason if job.past_attempts else ""
    return f"the profiled attempt has ended{f': {past}' if past else ''}"


async def _file(folder: Path, name: str) -> HttpResponse:
    path = folder / name
    if not _FILE.fullmatch(name) or not path.is_file():
        raise WireError("NotFound", f"the profile has no file {name[:80]!r}", http_status=404)
    if path.stat().st_size > MAX_FILE_BYTES:
        raise WireError("ValidationException", f"{name} is too large for one answer; it lies at {path}")
    return HttpResponse(200, _OCTETS, await asyncio.to_thread(path.read_bytes))
