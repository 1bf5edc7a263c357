"""HTTP for the command line, beyond the AWS API. Opened by the admin token of the state folder."""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import unquote

from clary.base.errors import WireError
from clary.base.plain import to_plain
from clary.contract.launch_plan import without_secrets
from clary.control.analysis.billing import bill
from clary.control.analysis.failure_hints import category, hint
from clary.control.analysis.ledger import ledger
from clary.control.analysis.time_parts import cut_time
from clary.control.analysis.timeline import timeline
from clary.control.jobs.health import clock_words
from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.job_state import job_state, job_times
from clary.control.jobs.rules.rule_evaluations import RuleKind, evaluations_of
from clary.control.jobs.training_job import PastAttempt, TrainingJob
from clary.control.jobs.training_status import progress_facts
from clary.control.server.actions.rehearsal_actions import RehearsalActions
from clary.control.server.actions.rerun_action import rerun
from clary.control.server.actions.spot_actions import reclaim
from clary.control.server.actions.stop_action import stop_job
from clary.control.server.edge.internal_http import bearer_token, json_answer, query_of, read_json
from clary.control.server.pages.checkpoints_page import CheckpointRoutes, checkpoint_facts
from clary.control.server.pages.downloads_page import DownloadsPage
from clary.control.server.pages.dump_page import ask_for_dump, dump_page
from clary.control.server.pages.health_page import health_page
from clary.control.server.pages.log_lines_page import log_lines_page
from clary.control.server.pages.metric_values_page import metric_values_page
from clary.control.server.pages.profile_page import ask_for_profile, profile_page
from clary.control.server.pages.profiler_report_page import profiler_report_page
from clary.control.server.pages.rehearsals_page import RehearsalPages
from clary.control.server.pages.secret_names import hide_secrets
from clary.control.server.pages.series_page import series_page
from clary.control.server.pages.stragglers_page import StragglerPages
from clary.control.server.pages.training_page import tensorboard_page, training_page
from clary.control.server.pages.why_page import why_page
from clary.control.services.call import Services
from clary.control.services.job_descriptions import readable, unreadable_members
from clary.control.services.training_progress import job_progress
from clary.control.store.errors import BadToken, StreamNotFound
from clary.control.store.log_files.log_pages import EventPage
from clary.control.wire.messages import HttpRequest, HttpResponse

PREFIX = "/clary/v1/jobs/"
LOG_PAGE = 2000  # lines of one stream in one answer
# A page of the store also ends at 1 MiB, less one line of at most 256 KiB; a character has up to four bytes.
FULL_PAGE_CHARACTERS = 128 * 1024
_MOMENT = re.compile(r"[0-9]{1,15}")  # milliseconds since 1970
_JOB_NAME = re.compile(r"[a-zA-Z0-9-]{1,63}")  # CreateTrainingJob, TrainingJobName


class PeopleRoutes:
    """Answers requests below /clary/v1/jobs/.

    Args:
        checkpoints: answers for checkpoints; None has no such page.
        rehearsals: strikes jobs that were made for it; None has no such pages.
        rehearsal_pages: rehearsals that people ask for; None has no such page.
        downloads: links to what jobs have made; None has no such page.
        shared: sentences on what the settings share; is told whether the job has a network.
    """

    def __init__(
        self,
        services: Services,
        *,
        admin_token: str,
        checkpoints: CheckpointRoutes | None = None,
        rehearsals: RehearsalActions | None = None,
        rehearsal_pages: RehearsalPages | None = None,
        downloads: DownloadsPage | None = None,
        shared: Callable[[bool], Sequence[str]] = lambda _: (),
    ) -> None:
        self._services = services
        self._admin_token = admin_token
        self._checkpoints = checkpoints
        self._rehearsals = rehearsals
        self._rehearsal_pages = rehearsal_pages
        self._downloads = downloads
        self._shared = shared
        self._stragglers = StragglerPages(services)

    async def handle(self, request: HttpRequest) -> HttpResponse:
        """Answer one request; raises WireError with the status to send."""
        if not hmac.compare_digest(bearer_token(request).encode(), self._admin_token.encode()):
            raise WireError("AccessDenied", "the token does not open this service", http_status=403)
        name, page = (unquote(part) for part in request.raw_path.removeprefix(PREFIX).partition("/")[::2])
        job = None
        if _JOB_NAME.fullmatch(name):
            job = self._services.hub.live_job(name) or await self._services.store.get_job(name)
        if job is None:
            raise WireError("NotFound", f"there is no training job {name!r}", http_status=404)
        match page:
            case "":
                facts = await self._stragglers.facts(job, self._facts(job))
                # Of 500 hosts it takes most of a second, and the console asks every two.
                times = await asyncio.to_thread(self._times, job)
                told = self._rehearsal_pages.facts(job) if self._rehearsal_pages is not None else {}
                return json_answer({**facts, **times, **told, "progress": await self._progress(job)})
            case "state":
                return json_answer(self._state(job))
            case "stragglers":
                return json_answer(await self._stragglers.page(job))
            case "plan":
                plan = self._plan(job)
                return json_answer(hide_secrets(plan) if request.hides_secrets else plan)
            case "why":
                return json_answer(await why_page(self._services, job))
            case "health":
                return json_answer(health_page(job))
            case "series":
                return json_answer(await series_page(self._services, job, query_of(request)))
            case "logs":
                return json_answer(await self._log_page(job, request))
            case "checkpoints" if self._checkpoints is not None:
                return json_answer(await self._checkpoints.answer(job, query_of(request)))
            case "dump" if request.method == "POST":
                return json_answer(await ask_for_dump(self._services, job))
            case "dump":
                dump = await dump_page(self._services, job, query_of(request))
                # Of many processes it takes a second.
                return json_answer(await asyncio.to_thread(hide_secrets, dump) if request.hides_secrets else dump)
            case "profile" if request.method == "POST":
                return json_answer(await ask_for_profile(self._services, job, read_json(request)))
            case "profile":
                answer = await profile_page(self._services, job, query_of(request))
                return answer if isinstance(answer, HttpResponse) else json_answer(answer)
            case "profiler-report":
                return await profiler_report_page(self._services, job, query_of(request))
            case "reclaim" if request.method == "POST":
                return json_answer(await reclaim(self._services, job, read_json(request)))
            case "request":
                sent = dict(job.request)
                return json_answer({"request": hide_secrets(sent) if request.hides_secrets else sent})
            case "training":
                return json_answer(await training_page(self._services, job, query_of(request)))
            case "tensorboard":
                return await tensorboard_page(self._services, job, query_of(request))
            case "log-lines":
                return json_answer(await log_lines_page(self._services, job, query_of(request)))
            case "metric-values":
                return json_answer(await metric_values_page(self._services, job, request.query))
            case "downloads" if self._downloads is not None:
                return json_answer(await self._downloads.page(job, request))
            case "rerun" if request.method == "POST":
                return json_answer(await rerun(self._services, job, read_json(request)))
            case "stop" if request.method == "POST":
                return json_answer(await stop_job(self._services, job))
            case "strike" if request.method == "POST" and self._rehearsals is not None:
                return json_answer(await self._rehearsals.strike(job, read_json(request)))
            case "rehearsals" if request.method == "POST" and self._rehearsal_pages is not None:
                return json_answer(self._rehearsal_pages.act(job, read_json(request)))
            case "rehearsals" if self._rehearsal_pages is not None:
                return json_answer(await self._rehearsal_pages.page(job, query_of(request)))
            case "records" if self._rehearsals is not None:
                return json_answer(await self._rehearsals.records(job, query_of(request)))
        known = (
            "state, plan, request, why, logs, log-lines, series, training, tensorboard, metric-values, stragglers, "
            "health, dump, profile, profiler-report, checkpoints, downloads and rehearsals; stop, rerun, strike and "
            "reclaim by POST"
        )
        raise WireError("NotFound", f"a job has no page {page!r}; there are {known}", http_status=404)

    def _state(self, job: TrainingJob) -> dict[str, Any]:
        """Return the state of a job: a cheap part of `_facts`, for clients that poll."""
        return {
            "name": job.name,
            "status": job.status.value,
            "secondary_status": job.secondary_status.value,
            "state": job_state(job).value,
            "failure_reason": "" if job.failure is None else job.failure.reason,
        }

    def _facts(self, job: TrainingJob) -> dict[str, Any]:
        plan = job.plan or {"hosts": [], "environment": {}}
        planned = {host["name"]: host for host in plan["hosts"]}
        hosts = [
            {
                "name": name,
                "phase": record.facts.phase.value,
                "instance_type": planned[name]["instance_type"],
                "processes_per_host": planned[name]["processes_per_host"],
                "address": planned[name]["address"],
                "timings_s": dict(record.facts.timings_s),
                "exits": _exits(record.facts.exits),
                "notes": list(record.facts.notes),
                "standstill": record.facts.standstill,
                "rendezvous_at": to_plain(record.facts.rendezvous_at),
            }
            for name, record in job.hosts.items()
        ]
        environment = plan["environment"]
        return {
            **self._state(job),
            "arn": job.arn,
            "times": to_plain(job_times(job, now=job.now(self._services.clock))),
            "queue": to_plain(self._services.queue.place(job)),
            "created_at": to_plain(job.created_at),
            "attempt": job.attempt,
            "past_attempts": [_past_attempt(attempt) for attempt in job.past_attempts],
            "cause": to_plain(job.failure),
            "category": "" if job.failure is None else category(job.failure.verdict),
            "hint": _hint(job),
            "timeline": [to_plain(row) for row in timeline(job)],
            "pending_reason": self._services.admission.pending_reason(job),
            "image": JobRequest(job.request).image,
            "environment": f"{environment['name']} ({environment['python']})" if environment else "",
            "isolation": plan.get("isolation", ""),
            "model_artifacts_uri": job.model_artifacts_uri,
            "metrics": [to_plain(metric) for metric in job.final_metrics],
            "transitions": [to_plain(row) for row in job.transitions],
            "hosts": hosts,
            "clocks": clock_words(job),
            "warm_pool": self._warm_pool(job),
            "checkpoints": checkpoint_facts(job),
            "rules": [to_plain(item) for kind in RuleKind for item in evaluations_of(readable(job), kind)],
            "warnings": [*job.warnings, *_unreadable(job), *_notes(hosts)],
            "emulation": list(job.emulation),
            "not_isolated": self._not_isolated(job),
        }

    def _not_isolated(self, job: TrainingJob) -> list[str]:
        """Return sentences on the parts that a job's hosts found shared, then on the parts that the settings share."""
        of_hosts = sorted({text for record in job.hosts.values() for text in record.facts.not_isolated})
        return [*of_hosts, *self._shared(not JobRequest(job.request).has_network_isolation)]

    async def _progress(self, job: TrainingJob) -> dict[str, Any] | None:
        progress = await job_progress(self._services, job)
        return progress_facts(progress, now=self._services.clock.now(), is_over=job.is_terminal)

    def _times(self, job: TrainingJob) -> dict[str, Any]:
        now = job.now(self._services.clock)
        price = self._services.prices.of_job(JobRequest(readable(job).request))
        spent = {**to_plain(ledger(job, now=now)), "bill": to_plain(bill(job, price, now=now))}
        return {"ledger": spent, "lanes": _lanes(job, now=now)}

    def _warm_pool(self, job: TrainingJob) -> dict[str, Any] | None:
        if job.warm_pool is None:
            return None
        keep_alive_s, retained_s = (
            JobRequest(job.request).keep_alive_s,
            job.warm_pool.retained_s(job.now(self._services.clock)),
        )
        return {**to_plain(job.warm_pool), "name": job.pool, "keep_alive_s": keep_alive_s, "retained_s": retained_s}

    def _plan(self, job: TrainingJob) -> dict[str, Any]:
        if job.plan is None:
            reason = self._services.admission.pending_reason(job) or "no hosts were asked for"
            raise WireError("NotFound", f"{job.name} has no launch plan yet: {reason}", http_status=404)
        return without_secrets(job.plan)

    async def _log_page(self, job: TrainingJob, request: HttpRequest) -> dict[str, Any]:
        """Return the next lines of every wanted stream.

        `sure_until_ms` is None if that is all there is now; else no line up to this time is missing, later ones are.
        """
        query = query_of(request)
        wanted_host, wanted_rank = query.get("host"), query.get("rank")
        start_ms, end_ms = _moment(query, "since_ms"), _moment(query, "until_ms")
        start_ms, end_ms = _within_attempt(job, query.get("attempt"), start_ms, end_ms)
        if wanted_host is not None and job.hosts and wanted_host not in job.hosts:
            message = f"{job.name} has no host {wanted_host!r}; it has {', '.join(job.hosts)}"
            raise WireError("NotFound", message, http_status=404)
        # Read before the lines, so that a job that is over then has no line that this page misses.
        is_over = job.is_terminal
        lines: list[dict[str, Any]] = []
        tokens: dict[str, str] = {}
        sure_until_ms: int | None = None
        for stream in job.log_streams:
            host = stream.split("/", 1)[1].rpartition("-")[0]
            if wanted_host not in (None, host):
                continue
            try:
                page = await self._services.logs.get_events(
                    stream,
                    start_ms=start_ms,
                    end_ms=end_ms,
                    from_head=True,
                    token=query.get(f"after.{stream}"),
                    limit=LOG_PAGE,
                )
            except StreamNotFound:  # deleted meanwhile: no lines
                continue
            except BadToken as error:
                raise WireError("ValidationException", error.message) from error
            tokens[stream] = page.next_forward_token
            if _is_full(page):
                end_ms = page.events[-1].timestamp_ms
                sure_until_ms = end_ms if sure_until_ms is None else min(sure_until_ms, end_ms)
            lines.extend(
                {"host": host, "at_ms": event.timestamp_ms, "text": event.message, "rank": event.rank}
                for event in page.events
                if wanted_rank is None or str(event.rank) == wanted_rank
            )
        lines.sort(key=lambda line: line["at_ms"])
        return {"lines": lines, "tokens": tokens, "is_over": is_over, "sure_until_ms": sure_until_ms}


def _moment(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    if not _MOMENT.fullmatch(text):
        raise WireError("ValidationException", f"{name} must be milliseconds since 1970, got {text[:40]!r}")
    return int(text)


def _within_attempt(
    job: TrainingJob, wanted: str | None, start_ms: int | None, end_ms: int | None
) -> tuple[int | None, int | None]:
    """Return the times between which lines of the wanted attempt lie; nothing of two attempts exists at once."""
    if wanted is None:
        return start_ms, end_ms
    attempts = [str(number) for number in range(1, job.attempt + 1)]
    if wanted not in attempts:
        existing = f"it has {', '.join(attempts)}" if attempts else "no hosts were asked for yet"
        raise WireError("NotFound", f"{job.name} has no attempt {wanted[:20]}; {existing}", http_status=404)
    ends_ms = {attempt.number: int(attempt.ended_at.timestamp() * 1000) for attempt in job.past_attempts}
    starts = [moment for moment in (start_ms, ends_ms.get(int(wanted) - 1)) if moment is not None]
    ends = [moment for moment in (end_ms, ends_ms.get(int(wanted))) if moment is not None]
    return max(starts, default=None), min(ends, default=None)


def _is_full(page: EventPage) -> bool:
    """Whether there may be more lines behind the page."""
    return len(page.events) == LOG_PAGE or sum(len(event.message) for event in page.events) > FULL_PAGE_CHARACTERS


def _lanes(job: TrainingJob, *, now: datetime) -> dict[str, list[dict[str, Any]]]:
    """Return each host's activity over time: the stretches that the ledger adds up."""
    return {name: [to_plain(stretch) for stretch in stretches] for name, stretches in cut_time(job, now=now).items()}


def _past_attempt(attempt: PastAttempt) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "kind": attempt.kind.value,
        "reason": attempt.reason,
        "asked_at": to_plain(attempt.asked_at),
        "ended_at": to_plain(attempt.ended_at),
        "exits": {name: _exits(facts.exits) for name, facts in attempt.hosts.items()},
    }


def _hint(job: TrainingJob) -> str:
    """Return advice on a failure, from its own words; the page `why` reads the log too."""
    if job.failure is None:
        return ""
    return hint(job.failure.message, channels=[channel.name for channel in JobRequest(job.request).channels])


def _exits(exits: Any) -> str:
    return ", ".join(
        f"{'rank ' + str(item.rank) + ': ' if item.rank is not None else ''}"
        f"{item.exit_code if item.exit_code is not None else f'signal {item.signal}'}"
        for item in exits
    )


def _unreadable(job: TrainingJob) -> list[str]:
    return [
        f"{path} of its stored request can not be said in the API's words: another release wrote it, or it is damaged"
        for path in unreadable_members(job)
    ]


def _notes(hosts: list[dict[str, Any]]) -> list[str]:
    return [f"{host['name']}: {note}" for host in hosts for note in host["notes"]]
