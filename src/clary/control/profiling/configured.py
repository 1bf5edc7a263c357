"""The rules in a request's ProfilerRuleConfigurations.

Where: when a job is created, the service warns of rules that it cannot evaluate; it evaluates the others.
Source: ProfilerRuleConfiguration (AWS API reference); RuleParameters as `sagemaker.debugger.ProfilerRule` writes them:
for ProfilerReport `<rule>_<parameter>`, with the rule's name in upper or lower case.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clary.base.errors import ContractError
from clary.control.profiling.rule import ProfilerRule, rule_with
from clary.control.profiling.rules import RULES

REPORT = "ProfilerReport"
# Rule names that occur in guides but in no client library -> the rules that they mean; parameters are named as for
# ProfilerReport.
MEANT: Mapping[str, tuple[str, ...]] = {"HardwareUtilization": ("OverallSystemUsage", "LowGPUUtilization")}
LEAST_INTERVAL_S, MOST_INTERVAL_S = 10.0, 3600.0
_INTERVAL = "scan_interval_us"
_IN_KEY = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, kw_only=True)
class ConfiguredRule:
    """One of a job's profiler rules.

    Attributes:
        name: RuleConfigurationName.
        kind: rule_to_invoke.
        rules: rules to evaluate: one rule, the rules of a name in `MEANT`, or all for ProfilerReport; empty with an
            `error`.
        s3_output_path: S3 URI for the rule's results; None for the job's own.
        error: why the rule cannot be evaluated; empty if it can.
    """

    name: str
    kind: str
    rules: tuple[ProfilerRule, ...] = ()
    s3_output_path: str | None = None
    error: str = ""

    @property
    def is_report(self) -> bool:
        """Whether the rule writes a report."""
        return self.kind == REPORT and not self.error

    @property
    def understood(self) -> str:
        """A sentence on a `kind` in `MEANT` and the rules that are evaluated for it; empty for other kinds."""
        if self.error or self.kind not in MEANT:
            return ""
        return f"there is no rule {self.kind}; understood as {' and '.join(MEANT[self.kind])}"

    @property
    def interval_s(self) -> float:
        """Seconds between evaluations."""
        wanted_s = min((rule.scan_interval_s for rule in self.rules), default=MOST_INTERVAL_S)
        return min(MOST_INTERVAL_S, max(LEAST_INTERVAL_S, wanted_s))


def configured_rules(configurations: Sequence[Mapping[str, Any]]) -> tuple[ConfiguredRule, ...]:
    """Return the rules of a request, in its order; a rule that cannot be evaluated has an `error`."""
    return tuple(_configured(configuration) for configuration in configurations)


def default_report() -> ConfiguredRule:
    """Return the report with every rule at its defaults."""
    return ConfiguredRule(name=REPORT, kind=REPORT, rules=tuple(rule() for rule in RULES.values()))


def object_prefix(output_path: str, job_name: str, rule_name: str) -> tuple[str, str]:
    """Return bucket and key prefix of a rule's results; the prefix ends with a slash.

    Args:
        output_path: S3 URI of the rule's S3OutputPath.
        job_name: name of the training job.
        rule_name: RuleConfigurationName; characters that are unsafe in keys become hyphens.
    """
    bucket, _, prefix = output_path.removeprefix("s3://").partition("/")
    folder = _IN_KEY.sub("-", rule_name).strip(".-") or "rule"
    parts = (prefix.rstrip("/"), job_name, "rule-output", folder, "profiler-output", "")
    return bucket, "/".join(parts if prefix else parts[1:])


def _configured(configuration: Mapping[str, Any]) -> ConfiguredRule:
    parameters = dict(configuration.get("RuleParameters") or {})
    name, kind = configuration["RuleConfigurationName"], parameters.pop("rule_to_invoke", "")
    output_path = configuration.get("S3OutputPath")
    try:
        rules = _rules(kind, parameters)
    except ContractError as error:
        return ConfiguredRule(name=name, kind=kind, error=error.message, s3_output_path=output_path)
    return ConfiguredRule(name=name, kind=kind, rules=rules, s3_output_path=output_path)


def _rules(kind: str, parameters: Mapping[str, str]) -> tuple[ProfilerRule, ...]:
    if "source_s3_uri" in parameters:
        raise ContractError("profiler rules of your own are not evaluated; built-in ones are")
    if kind == REPORT:
        return _of_several(REPORT, RULES.values(), parameters)
    if kind in MEANT:
        return _of_several(kind, [RULES[name] for name in MEANT[kind]], parameters)
    if kind not in RULES:
        known = ", ".join((*RULES, REPORT))
        raise ContractError(f"there is no profiler rule {kind[:80]!r} in RuleParameters.rule_to_invoke; known: {known}")
    return (rule_with(RULES[kind], parameters),)


def _of_several(
    kind: str, rules: Iterable[type[ProfilerRule]], parameters: Mapping[str, str]
) -> tuple[ProfilerRule, ...]:
    given: dict[type[ProfilerRule], dict[str, str]] = {rule: {} for rule in rules}
    of_word = {rule.name().lower(): rule for rule in given}
    for key, value in parameters.items():
        word, _, parameter = key.partition("_")
        rule = of_word.get(word.lower())
        if key == _INTERVAL:
            for own in given.values():
                own.setdefault(_INTERVAL, value)
        elif rule is None:
            raise ContractError(
                f"parameters of {kind} are called <rule>_<parameter>, such as {next(iter(given)).name()}_threshold; "
                f"got {key[:80]!r}"
            )
        else:
            given[rule][parameter.lower()] = value
    return tuple(rule_with(rule, own) for rule, own in given.items())
