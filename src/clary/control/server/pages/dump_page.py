"""Page `dump` of a job: requests a dump of the state of its processes, and shows it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

from clary.base.errors import WireError
from clary.base.plain import to_plain
from clary.contract.agent_protocol import HostPhase
from clary.contract.stack_dumps import HostDump
from clary.control.analysis.autopsy import examine
from clary.control.jobs.training_job import TrainingJob
from clary.control.reconcile.desks.dump_desk import DumpRequest
from clary.control.services.call import Services

ASKED_BY_PERSON = "asked for"
ANSWER_S = 35.0  # limit for the request, a host's dump and the answer; later answers are unlikely
_NUMBER = re.compile(r"[0-9]{1,18}")


async def ask_for_dump(services: Services, job: TrainingJob) -> dict[str, Any]:
    """Request a dump from every host of a running job; return before the hosts answer.

    Raises: WireError for a job whose program does not run.
    """
    running = [name for name, record in job.hosts.items() if record.facts.phase is HostPhase.RUNNING]
    if job.is_terminal or not running:
        raise WireError(
            "ValidationException",
            f"no program of {job.name} is running ({job.status.value}, {job.secondary_status.value}); "
            f"older dumps are shown by: clary dump {job.name} --last",
        )
    return {"number": (await services.dumps.ask(job, ASKED_BY_PERSON)).number}


async def dump_page(services: Services, job: TrainingJob, query: Mapping[str, str]) -> dict[str, Any]:
    """Return a dump with its analysis: the newest dump, or the dump with the query's `number`.

    With `brief` in the query, return only the missing hosts, which is cheap enough for frequent polls.

    Args:
        services: store the dumps.
        job: job of the dumps, which may have ended.
        query: `number` and `brief`; both may be missing.
    Raises: WireError 404 if there is no such dump.
    """
    numbers = await services.dumps.numbers(job.name)
    wanted = query.get("number", str(numbers[0]) if numbers else "")
    number = int(wanted) if _NUMBER.fullmatch(wanted) else -1
    missing = await services.dumps.missing(job.name, number)
    if missing is None:
        having = f"there are {', '.join(map(str, numbers))}" if numbers else "none was taken"
        raise WireError("NotFound", f"{job.name} has no dump {wanted[:20]}".rstrip() + f"; {having}", http_status=404)
    if "brief" in query:
        return {"number": number, "missing": missing}
    found = await services.dumps.read(job.name, number)
    if found is None:
        raise WireError("NotFound", f"dump {number} of {job.name} is gone: newer ones were taken", http_status=404)
    waited_s = services.dumps.waited_s(job, found[0])
    # For many hosts with many processes this takes seconds.
    return {"numbers": numbers, **await asyncio.to_thread(_whole_page, job, *found, waited_s=waited_s)}


def _whole_page(
    job: TrainingJob, request: DumpRequest, dumps: Mapping[str, HostDump], *, waited_s: float
) -> dict[str, Any]:
    planned = (job.plan or {"hosts": []})["hosts"] if request.attempt == job.attempt else []
    num_ranks = sum(host["processes_per_host"] for host in planned)
    return {
        "job": job.name,
        "status": job.status.value,
        **to_plain(request),
        "missing": [host for host in request.hosts if host not in dumps],
        "autopsy": to_plain(examine(dumps, hosts=request.hosts, num_ranks=num_ranks, is_final=waited_s > ANSWER_S)),
        "dumps": {host: to_plain(dump) for host, dump in dumps.items()},
    }
