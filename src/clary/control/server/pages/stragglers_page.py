"""The page `stragglers` of a job: the parts of each rank's step time, and the ranks that other ranks wait for.

Where: the answer to jobs/NAME/stragglers; `facts` adds the verdict to the job's page.

    {"job": ..., "status": ..., "since_ms": ..., "until_ms": ..., "ranks": [...], "verdict": {...}, "lasts": true}

The page covers the last two minutes; the last half hour if steps are long or the job ended some time ago.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from clary.base.plain import to_plain
from clary.control.analysis.stragglers import PARTS, HostFacts, RankSteps, StepTimes, judge, rows_of
from clary.control.jobs.training_job import TrainingJob
from clary.control.series.queries import Series, SeriesQuery
from clary.control.services.call import Services

KEPT_S = 3.0  # time for which an answer is reused: clients poll often, rows arrive every few seconds
MAX_KEPT = 256  # cached answers
MS_PER_S = 1000
SPANS_MS = ((120_000, 5_000), (1_800_000, 30_000))  # (length of the span, step between its moments)
MOST_MOMENTS = 24  # number of newest moments that are used
MANY_RANKS = 256  # with more ranks, each moment of the longer span is four times as long
_NAMES = (
    "rank-*/step_s,rank-*/data_wait_s,rank-*/forward_s,rank-*/backward_s,rank-*/communication_s,rank-*/optimizer_s,"
    "host/cpu_throttled_time_percent,host/network_r*"
)
_RANK = "rank-"


class StragglerPages:
    """Answers for all jobs."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._kept: dict[tuple[str, int], tuple[float, dict[str, Any]]] = {}

    async def page(self, job: TrainingJob) -> dict[str, Any]:
        """Return the page of a job, at most some seconds old."""
        now_s = self._services.clock.monotonic()
        kept = self._kept.get((job.arn, job.attempt))
        if kept is not None and now_s - kept[0] < KEPT_S:
            return {**kept[1], "status": job.status.value, "lasts": kept[1]["lasts"] and not job.is_terminal}
        page = await self._made(job)
        while len(self._kept) >= MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept.pop((job.arn, job.attempt), None)
        self._kept[job.arn, job.attempt] = (now_s, page)
        return page

    async def facts(self, job: TrainingJob, facts: dict[str, Any]) -> dict[str, Any]:
        """Return a job's facts with the verdict as `stragglers`; while the verdict lasts, also as a warning."""
        if not job.hosts:
            return {**facts, "stragglers": None}
        page = await self.page(job)
        verdict = page["verdict"]
        warnings = [*facts["warnings"], *([verdict["text"]] if page["lasts"] else [])]
        return {**facts, "warnings": warnings, "stragglers": verdict}

    async def _made(self, job: TrainingJob) -> dict[str, Any]:
        now_ms = int(self._services.clock.now().timestamp() * MS_PER_S)
        end_ms = now_ms if job.training_ended_at is None else int(job.training_ended_at.timestamp() * MS_PER_S)
        ranks: list[RankSteps] = []
        hosts: dict[str, HostFacts] = {}
        since_ms = end_ms
        for span_ms, step_ms in SPANS_MS:
            since_ms = max(0, end_ms - span_ms)
            if len(ranks) > MANY_RANKS:
                step_ms *= 4
            query = SeriesQuery(
                job_name=job.name,
                names=_NAMES,
                attempt=job.attempt,
                start_ms=since_ms,
                end_ms=end_ms + 1,
                step_ms=step_ms,
            )
            series = (await self._services.store.series.query(query)).series
            ranks, hosts = rank_steps(series), host_facts(series)
            verdict = judge(ranks, hosts, has_gpus=bool(job.held_gpus))
            if verdict.kind.value != "unknown":
                break
        began_ms = int(job.created_at.timestamp() * MS_PER_S)
        return {
            "job": job.name,
            "status": job.status.value,
            "since_ms": min(end_ms, max(since_ms, began_ms)),
            "until_ms": end_ms,
            "ranks": [to_plain(row) for row in rows_of(ranks)],
            "verdict": {**to_plain(verdict), "is_found": verdict.is_found},
            "lasts": verdict.is_found and not job.is_terminal,
        }


def rank_steps(series: Sequence[Series]) -> list[RankSteps]:
    """Return the ranks' steps at the newest moments at which at least one rank was measured."""
    means: dict[tuple[str, int], dict[int, dict[str, float]]] = {}
    for one in series:
        scope, _, quantity = one.name.partition("/")
        number = scope.removeprefix(_RANK)
        if scope == number or not number.isdecimal() or quantity not in ("step_s", *PARTS):
            continue
        moments = means.setdefault((one.host, int(number)), {})
        for point in one.points:
            moments.setdefault(point.at_ms, {})[quantity] = point.mean
    newest = sorted({at_ms for moments in means.values() for at_ms in moments})[-MOST_MOMENTS:]
    return [
        RankSteps(rank=rank, host=host, moments=_times(moments, set(newest)))
        for (host, rank), moments in sorted(means.items())
    ]


def host_facts(series: Sequence[Series]) -> dict[str, HostFacts]:
    """Return the medians of the hosts' measurements."""
    medians: dict[str, dict[str, float]] = {}
    for one in series:
        if one.points and one.name.startswith("host/"):
            values = [point.mean for point in one.points[-MOST_MOMENTS:]]
            medians.setdefault(one.host, {})[one.name] = statistics.median(values)
    return {
        host: HostFacts(
            refused_percent=values.get("host/cpu_throttled_time_percent"),
            rtt_ms=values.get("host/network_rtt_ms"),
            resent_percent=values.get("host/network_resent_percent"),
        )
        for host, values in medians.items()
    }


def _times(moments: Mapping[int, Mapping[str, float]], wanted: set[int]) -> dict[int, StepTimes]:
    return {
        at_ms: StepTimes(**values)
        for at_ms, values in sorted(moments.items())
        if at_ms in wanted and "step_s" in values
    }
