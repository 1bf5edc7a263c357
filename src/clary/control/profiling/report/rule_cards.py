"""The verdict of each rule in a report: a card for a rule that fires, a row for a rule that does not."""

from __future__ import annotations

from collections.abc import Sequence

from clary.control.profiling.report.drawing import text
from clary.control.profiling.report.facts import RuleResult
from clary.control.profiling.rule import summary_of

MOST_LINES = 64  # lines of one rule's evidence that are shown


def rules(results: Sequence[RuleResult]) -> str:
    """Return a card for each rule that fires, and one card with rows for the other rules, judged rules first."""
    cards = "".join(_rule_card(result) for result in results if result.fires)
    quiet = sorted((result for result in results if not result.fires), key=lambda one: not one.verdict.was_judged)
    rows = "".join(_rule_row(group) for group in _alike(quiet))
    return f'<section id="rules"><h2>Rules</h2>{cards}{f"<div class=card>{rows}</div>" if rows else ""}</section>'


def _rule_card(result: RuleResult) -> str:
    verdict = result.verdict
    earlier = f"<p>While the job ran: {text(result.earlier)}</p>" if result.earlier else ""
    advice = f'<p class="advice">{text(result.rule.advice)}</p>' if result.rule.advice else ""
    lines = verdict.evidence if len(verdict.evidence) > 1 else ()
    evidence = "".join(f"<li>{text(line)}</li>" for line in lines[:MOST_LINES])
    return (
        f'<div class="card fires"><div class="head"><h3>{text(result.rule.name())}</h3>'
        f'<span class="chip issue">issue found</span></div>'
        f'<p class="soft small">{text(summary_of(type(result.rule)))}</p><p>{text(verdict.detail)}</p>{earlier}'
        f"{f'<ul>{evidence}</ul>' if evidence else ''}{advice}"
        f"<details><summary>parameters</summary>{_parameters(result)}</details></div>"
    )


def _alike(results: Sequence[RuleResult]) -> list[list[RuleResult]]:
    """Return groups of results: rules that could not judge for the same reason share a group."""
    groups: dict[object, list[RuleResult]] = {}
    for result in results:
        key: object = result.rule.name() if result.verdict.was_judged else (result.verdict.detail,)
        groups.setdefault(key, []).append(result)
    return list(groups.values())


def _rule_row(group: Sequence[RuleResult]) -> str:
    verdict = group[0].verdict
    word, style = ("no issue", "fine") if verdict.was_judged else ("not judged", "none")
    names = ", ".join(result.rule.name() for result in group)
    details = []
    for result in group:
        lines = result.verdict.evidence if len(result.verdict.evidence) > 1 else ()
        evidence = "".join(f"<li>{text(line)}</li>" for line in lines[:MOST_LINES])
        name = f"<b>{text(result.rule.name())}</b>: " if len(group) > 1 else ""
        details.append(
            f"<p>{name}{text(summary_of(type(result.rule)))}.</p>{_parameters(result)}"
            f"{f'<ul>{evidence}</ul>' if evidence else ''}"
        )
    return (
        f'<div class="row"><div class="head"><h3>{text(names)}</h3>'
        f'<span class="chip {style}">{word}</span></div><p class="small">{text(verdict.detail)}</p>'
        f"<details><summary>what it looks for, and with which parameters</summary>{''.join(details)}</details></div>"
    )


def _parameters(result: RuleResult) -> str:
    parameters = ", ".join(f"{name}={value}" for name, value in result.rule.parameters().items())
    counts = f"{result.verdict.num_datapoints} datapoints, {result.verdict.num_violations} against"
    return f'<p><code>{text(parameters)}</code></p><p class="soft">{text(counts)}</p>'
