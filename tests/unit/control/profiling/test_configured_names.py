"""Rules of the profiler by names that are in guides but in no client library."""

import pytest

from clary.control.profiling.configured import MEANT, configured_rules
from clary.control.profiling.rules import RULES
from clary.control.services.sagemaker.profiler_requests import profiler_warnings


def asked(kind, **parameters):
    return {
        "RuleConfigurationName": "mine",
        "RuleEvaluatorImage": "registry.example/rules:1",
        "RuleParameters": {"rule_to_invoke": kind, **parameters},
    }


def test_hardware_utilization_is_evaluated_as_the_rules_that_it_stands_for():
    (rule,) = configured_rules([asked("HardwareUtilization", LowGPUUtilization_window="20")])
    assert [type(one).__name__ for one in rule.rules] == ["OverallSystemUsage", "LowGPUUtilization"]
    assert rule.rules[1].window == 20
    assert not rule.is_report
    assert "understood as OverallSystemUsage and LowGPUUtilization" in rule.understood


def test_a_parameter_of_hardware_utilization_without_its_rule_is_refused_with_the_right_form():
    (rule,) = configured_rules([asked("HardwareUtilization", CPUBottleneck_threshold="20")])
    assert "parameters of HardwareUtilization are called <rule>_<parameter>" in rule.error
    assert not rule.rules
    assert rule.understood == ""


def test_alias_names_are_no_rules_and_stand_for_existing_rules():
    assert not MEANT.keys() & RULES.keys()
    assert {name for names in MEANT.values() for name in names} <= RULES.keys()


def test_the_job_is_warned_once_of_a_replaced_rule_name():
    (words,) = profiler_warnings({"ProfilerRuleConfigurations": [asked("HardwareUtilization"), asked("CPUBottleneck")]})
    assert words.startswith("profiler rule mine: there is no rule HardwareUtilization; understood as")


@pytest.mark.parametrize("kind", ["HardwareUtilization", "ProfilerReport", "OverallSystemUsage"])
def test_a_profiler_rule_among_the_debugger_rules_is_warned_of(kind):
    (words,) = profiler_warnings({"DebugRuleConfigurations": [asked(kind)]})
    assert f"{kind} is a rule of the profiler" in words
    assert "ProfilerRuleConfigurations" in words
    others = [asked("VanishingGradient"), asked(kind, source_s3_uri="s3://bucket/of_the_user.py")]
    assert profiler_warnings({"DebugRuleConfigurations": others}) == ()
