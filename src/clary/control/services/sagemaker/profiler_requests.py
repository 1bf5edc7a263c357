"""Checks, warnings and merging of the profiler's members in CreateTrainingJob and UpdateTrainingJob.

Warnings on debugger rules that will end in Error are here, too, because some of them name profiler rules.
Source: ProfilerConfig, ProfilerRuleConfiguration (AWS API reference): valid intervals, names of rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from clary.base.errors import WireError
from clary.contract.deep_profiles import window_problems
from clary.contract.settings.debug_rules import rule_problem
from clary.contract.settings.named_places import s3_uri_problem
from clary.control.jobs.rules.debug_request import rule_plans
from clary.control.profiling.configured import MEANT, REPORT, configured_rules
from clary.control.profiling.rules import RULES

INTERVALS_MS = (100, 200, 500, 1000, 5000, 60_000)
MAX_RULES = 20
Rules = Sequence[Mapping[str, Any]]


def check_profiler(request: Mapping[str, Any]) -> None:
    """Refuse invalid intervals and S3 paths, rules of the same name, and more than `MAX_RULES` rules.

    Raises: WireError(ValidationException).
    """
    config = request.get("ProfilerConfig") or {}
    interval = config.get("ProfilingIntervalInMilliseconds")
    if interval is not None and interval not in INTERVALS_MS:
        raise _refusal(
            f"ProfilerConfig.ProfilingIntervalInMilliseconds must be one of {', '.join(map(str, INTERVALS_MS))}; "
            f"got {interval}."
        )
    rules = request.get("ProfilerRuleConfigurations") or ()
    places = {"ProfilerConfig.S3OutputPath": config.get("S3OutputPath")}
    places |= {f"S3OutputPath of rule {rule['RuleConfigurationName']!r}": rule.get("S3OutputPath") for rule in rules}
    for member, uri in places.items():
        problem = None if uri is None else s3_uri_problem(uri)
        if problem is not None:
            raise _refusal(f"{member} must be s3://bucket/prefix, got {uri!r}: {problem}.")
    names = Counter(rule["RuleConfigurationName"] for rule in rules)
    doubled = [name for name, count in names.items() if count > 1]
    if doubled:
        raise _refusal(f"Rule configuration names must be unique; {doubled[0]!r} appears twice.")
    if len(rules) > MAX_RULES:
        raise _refusal(f"A training job has at most {MAX_RULES} profiler rules; {len(rules)} were asked for.")


def profiler_warnings(request: Mapping[str, Any], *, is_measured: bool = True) -> tuple[str, ...]:
    """Return warnings on the profiler, and on rules that end in Error, mean other rules or are not evaluated.

    Args:
        request: the job's request.
        is_measured: whether hosts measure themselves at all (setting metrics_interval_s).
    """
    rules = configured_rules(request.get("ProfilerRuleConfigurations") or ())
    told = [(rule.name, rule.error or rule.understood) for rule in rules]
    found = [f"profiler rule {name}: {words}" for name, words in told if words]
    found += _of_debugger(request)
    config = request.get("ProfilerConfig") or {}
    found += [f"ProfilerConfig.ProfilingParameters: {words}" for words in window_problems(config)]
    if not is_measured and config.get("ProfilingIntervalInMilliseconds"):
        found.append(
            "ProfilerConfig.ProfilingIntervalInMilliseconds has no effect: with setting metrics_interval_s = 0 hosts "
            "do not measure themselves"
        )
    if not is_measured and rules:
        found.append("profiler rules have nothing to look at: setting metrics_interval_s = 0 has hosts measure nothing")
    if rules and config.get("DisableProfiler"):
        found.append("profiler rules are not evaluated while ProfilerConfig.DisableProfiler is true")
    return tuple(found)


def _of_debugger(request: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each debugger rule that ends in Error, even if it names a profiler rule."""
    found = []
    for plan in rule_plans(request):
        if plan.source_uri and plan.rule:
            continue  # a class of the user's file, which is not read yet
        if plan.rule in (*RULES, *MEANT, REPORT):
            found.append(
                f"rule {plan.name}: {plan.rule} is a rule of the profiler and sees no tensors: put it "
                "in ProfilerRuleConfigurations, in SDK v2 by ProfilerRule.sagemaker"
            )
        elif problem := rule_problem(plan.rule, plan.parameters):
            found.append(f"rule {plan.name}: {problem}; its evaluation will end in Error")
    return found


def merged_rules(present: Rules, added: Rules) -> list[Mapping[str, Any]]:
    """Return a job's profiler rules after an update, which adds rules, and replaces rules of the same name."""
    by_name = {rule["RuleConfigurationName"]: rule for rule in (*present, *added)}
    return list(by_name.values())


def _refusal(message: str) -> WireError:
    return WireError("ValidationException", message)
