"""The page `profiler-report` of a job: a report on all measurements so far, as HTML or JSON.

?format=json        the result of each rule
&html=1             also the HTML page, as a text
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from clary.control.jobs.rules.rule_evaluations import RuleKind, RuleStatus, configurations_of, evaluation_of
from clary.control.jobs.training_job import TrainingJob
from clary.control.profiling.configured import ConfiguredRule, configured_rules, default_report
from clary.control.profiling.report.facts import RuleResult
from clary.control.profiling.report.page import render
from clary.control.reconcile.job_measurements import read_measurements, report_facts
from clary.control.server.edge.internal_http import json_answer
from clary.control.services.call import Services
from clary.control.wire.messages import HttpResponse

# The page contains texts of jobs, so it may only be displayed, and can run no script.
HTML_HEADERS = [
    ("Content-Type", "text/html; charset=utf-8"),
    ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; sandbox; frame-ancestors 'self'"),
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
]


async def profiler_report_page(services: Services, job: TrainingJob, query: Mapping[str, str]) -> HttpResponse:
    """Return the report of a job that runs or has ended. Raises: StoreError.

    Args:
        services: store the measurements.
        job: a job that runs or has ended.
        query: parameters, as in the module docstring.
    """
    now = services.clock.now()
    measured = await read_measurements(services.store.series, job, now=now)
    facts = report_facts(job, measured, now=now)
    report = _report_of(job)

    def make() -> tuple[list[RuleResult], str]:
        verdicts = [(rule, rule.judge(measured.measurements)) for rule in report.rules]
        results = [
            RuleResult(rule=rule, verdict=verdict, earlier=_earlier(job, rule.name(), verdict.has_issue))
            for rule, verdict in verdicts
        ]
        wants_page = query.get("format") != "json" or "html" in query
        return results, render(facts, measured.measurements, results) if wants_page else ""

    results, page = await asyncio.to_thread(make)  # takes a second for many ranks
    if query.get("format") != "json":
        return HttpResponse(200, list(HTML_HEADERS), page.encode("utf-8", "replace"))
    document: dict[str, Any] = {
        "job": job.name,
        "status": job.status.value,
        "step_ms": measured.measurements.step_ms,
        "rules": [_plain(result) for result in results],
    }
    if page:
        document["html"] = page
    return json_answer(document)


def _report_of(job: TrainingJob) -> ConfiguredRule:
    """Return the job's requested report; else a report with all rules, each as requested or at its defaults."""
    rules = configured_rules(configurations_of(job, RuleKind.PROFILER))
    asked = next((rule for rule in rules if rule.is_report), None)
    if asked is not None:
        return asked
    by_name = {rule.name(): rule for rule in default_report().rules}
    by_name |= {one.name(): one for rule in rules for one in rule.rules}
    return ConfiguredRule(name="", kind="", rules=tuple(by_name.values()))


def _earlier(job: TrainingJob, rule_name: str, has_issue: bool) -> str:
    """Return the issue that a requested rule found earlier but does not find now, or an empty text."""
    for rule in configured_rules(configurations_of(job, RuleKind.PROFILER)):
        known = evaluation_of(job, RuleKind.PROFILER, rule.name)
        if rule.kind == rule_name and not has_issue and known is not None and known.status is RuleStatus.ISSUES_FOUND:
            return known.details
    return ""


def _plain(result: RuleResult) -> dict[str, Any]:
    verdict = result.verdict
    return {
        "rule": result.rule.name(),
        "fires": result.fires,
        "was_judged": verdict.was_judged,
        "detail": verdict.detail,
        "earlier": result.earlier,
        "evidence": list(verdict.evidence),
        "num_datapoints": verdict.num_datapoints,
        "num_violations": verdict.num_violations,
        "parameters": result.rule.parameters(),
        "advice": result.rule.advice if result.fires else "",
        "figures": {where: dict(numbers) for where, numbers in verdict.figures.items()},
    }
