"""50 jobs at once, submitted, stopped and deleted by 8 clients: the time of every call, and the service's memory.

The clients are processes with boto3 (`clary.testing.many_jobs`); they share the machine with the service and the jobs.
A line is verified if every answer was AWS's, every job ended as it had to, none overtook an older one, no terminal
status moved and everything that was deleted was gone.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from benchmarks.lines import Line, percentile
from benchmarks.service import running_service
from clary.testing.many_jobs.crowd import CrowdPlan, CrowdReport, run_crowd
from clary.testing.many_jobs.service_watch import Sample

SETTINGS = "max_hosts = 4\nmemory_overcommit = 32.0\nstop_grace_s = 10.0\n"
QUICK_S = 20.0
MIB = 1024**2
GOAL_GROWTH_MIB = 32.0
MAX_WRONGS_SHOWN = 20


def run(quick: bool) -> Iterator[Line]:
    """Let the crowd loose once."""
    plan = CrowdPlan(seconds=QUICK_S, look_interval_s=QUICK_S / 5) if quick else CrowdPlan()
    with running_service(SETTINGS) as service:
        report = run_crowd(plan, service.environment, service.home, say=lambda words: print(words, file=sys.stderr))
    for wrong in report.wrongs[:MAX_WRONGS_SHOWN]:
        print(f"wrong: {wrong}", file=sys.stderr)
    is_right = not report.wrongs and len(report.jobs) > 0
    case = f"clients={plan.num_clients},jobs_at_once={plan.num_jobs},seconds={plan.seconds:g}"
    yield _outcome(report, case, is_right)
    yield _memory(report, case, is_right)
    for operation, latencies in report.latencies_s.items():
        yield _percentiles(f"{case},call:{operation}".replace(" ", "_"), "latency_s", latencies, is_right)
    yield _percentiles(f"{case},create_to_first_line", "queued_and_started_s", report.first_lines_s, is_right)


def _outcome(report: CrowdReport, case: str, is_right: bool) -> Line:
    elapsed_s = report.samples[-2].elapsed_s
    return Line(
        case=case,
        metric="jobs_ended_per_s",
        unit="1/s",
        better="higher",
        ours=len(report.jobs) / elapsed_s,
        goal="0 wrong answers, ends or overtakings",
        met=is_right,
        samples=len(report.jobs),
        verified=is_right,
        details={
            "wrong": len(report.wrongs),
            "ended": report.statuses,
            "ended_by_client": [len(client.jobs) for client in report.clients],
            "alive_at_most": sum(client.num_alive_at_most for client in report.clients),
            "refused": report.refusals,
            "throttled": sum(client.num_throttled for client in report.clients),
            "retries_by_boto3": sum(client.num_retries for client in report.clients),
            "longest_pause_of_a_queue_s": report.longest_pause_s,
        },
    )


def _memory(report: CrowdReport, case: str, is_right: bool) -> Line:
    """Return the growth of the service's memory since its first look under load (after a minute of the long run)."""
    warm = report.samples[1]
    growth_mib = (report.samples[-1].rss_bytes - warm.rss_bytes) / MIB
    return Line(
        case=case,
        metric="rss_growth",
        unit="MiB",
        better="lower",
        ours=growth_mib,
        goal=f"<= {GOAL_GROWTH_MIB:g}",
        met=growth_mib <= GOAL_GROWTH_MIB,
        samples=len(report.samples),
        verified=is_right,
        details={"looks": [_look(sample) for sample in report.samples]},
    )


def _look(sample: Sample) -> dict[str, Any]:
    look = asdict(sample)
    return {"rss_mib": round(look.pop("rss_bytes") / MIB, 1), **look, "elapsed_s": round(sample.elapsed_s, 1)}


def _percentiles(case: str, metric: str, ordered: list[float], is_right: bool) -> Line:
    return Line(
        case=case,
        metric=metric,
        unit="s",
        better="lower",
        ours=statistics.median(ordered),
        samples=len(ordered),
        verified=is_right,
        details={"p99_s": percentile(ordered, 99), "max_s": ordered[-1]},
    )
