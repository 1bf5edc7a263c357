"""The report as files: one page of HTML, and one JSON document per rule.

Where: the service stores both at a job's end (`reconcile.profiler_rules`), and renders the page on request.
Source: names of files and of the documents' members as in SageMaker's reports.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from clary.control.profiling.measurements import Measurements
from clary.control.profiling.report import sections
from clary.control.profiling.report.drawing import text
from clary.control.profiling.report.facts import ReportFacts, RuleResult
from clary.control.profiling.report.rule_cards import rules
from clary.control.profiling.report.style import SHEET

PAGE_NAME = "profiler-report.html"
DOCUMENTS_FOLDER = "profiler-reports/"
# Anyone may open a stored page, so it must not run or fetch anything, whatever the job's name contains.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def render(facts: ReportFacts, measurements: Measurements, results: Sequence[RuleResult]) -> str:
    """Return the HTML page, which is self-contained and has no script; texts of the job are escaped.

    Args:
        facts: facts of the job.
        measurements: series of the job; charts are drawn from them.
        results: one for each rule of the report.
    """
    span = sections.span_of(facts, measurements)
    body = "".join(
        (
            sections.header(facts, results),
            rules(results),
            sections.time(facts),
            sections.steps(facts, measurements, span),
            sections.usage(measurements),
            sections.hosts(facts, measurements, span),
            sections.footer(facts, measurements),
        )
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{text(facts.job_name)}: profiler report</title><style>{SHEET}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def documents(results: Sequence[RuleResult]) -> dict[str, str]:
    """Return file name -> JSON text, one file per rule."""
    return {f"{DOCUMENTS_FOLDER}{result.rule.name()}.json": json.dumps(_document(result)) for result in results}


def files(facts: ReportFacts, measurements: Measurements, results: Sequence[RuleResult]) -> dict[str, bytes]:
    """Return all files of a report, by their names below its folder.

    Args: as `render`.
    """
    pages = {PAGE_NAME: render(facts, measurements, results), **documents(results)}
    return {name: content.encode("utf-8", "replace") for name, content in pages.items()}


def _document(result: RuleResult) -> dict[str, object]:
    verdict, parameters = result.verdict, result.rule.parameters()
    return {
        "RuleTriggered": int(result.fires),
        "Violations": verdict.num_violations,
        "Datapoints": verdict.num_datapoints,
        "RuleParameters": "\n".join(f"{name}:{value}" for name, value in parameters.items()),
        "Description": verdict.detail,
        "Earlier": result.earlier,
        "WasJudged": verdict.was_judged,
        "Recommendation": result.rule.advice if result.fires else "",
        "Details": {
            where: {name: value if math.isfinite(value) else None for name, value in numbers.items()}
            for where, numbers in verdict.figures.items()
        },
    }
