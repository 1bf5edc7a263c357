"""Rules as requests configure them, and where their results are stored."""

import pytest

from clary.base.errors import ContractError
from clary.control.profiling.configured import REPORT, configured_rules, default_report, object_prefix
from clary.control.profiling.rule import rule_with
from clary.control.profiling.rules import RULES

IMAGE = "895741380848.dkr.ecr.us-west-2.amazonaws.com/sagemaker-debugger-rules:latest"


def asked(kind, name="mine", **parameters):
    return {
        "RuleConfigurationName": name,
        "RuleEvaluatorImage": IMAGE,
        "RuleParameters": {"rule_to_invoke": kind, **parameters},
    }


def test_a_report_runs_every_rule_with_the_parameters_that_name_it():
    (report,) = configured_rules([asked(REPORT, CPUBottleneck_threshold="77", lowgpuutilization_Window="20")])
    assert report.is_report
    assert {type(rule).__name__ for rule in report.rules} == set(RULES)
    by_name = {type(rule).__name__: rule for rule in report.rules}
    assert by_name["CPUBottleneck"].threshold == 77
    assert by_name["LowGPUUtilization"].window == 20
    assert by_name["IOBottleneck"].threshold == 50


def test_a_single_rule_has_the_parameters_that_the_sdk_writes():
    (one,) = configured_rules(
        [asked("StepOutlier", stddev="2", mode="None", n_outliers="4", scan_interval_us="30000000")]
    )
    assert (one.rules[0].stddev, one.rules[0].mode, one.rules[0].n_outliers) == (2, None, 4)
    assert one.interval_s == 30.0
    assert not one.is_report


@pytest.mark.parametrize(
    ("configuration", "words"),
    [
        (asked("DetailedProfilerProcessing"), "there is no profiler rule 'DetailedProfilerProcessing'"),
        (asked("CPUBottleneck", speed="3"), "has no parameter 'speed'; it has scan_interval_us, threshold"),
        (asked("CPUBottleneck", threshold="120"), "a number from 0 to 100, got '120'"),
        (asked("CPUBottleneck", patience="0"), "a number above 0, got '0'"),
        (asked("CPUBottleneck", patience="nan"), "got 'nan'"),
        (asked(REPORT, speed="3"), "<rule>_<parameter>"),
        (asked("Mine", source_s3_uri="s3://b/rule.py"), "rules of your own"),
        ({"RuleConfigurationName": "bare", "RuleEvaluatorImage": IMAGE}, "no profiler rule ''"),
    ],
)
def test_a_rule_that_can_not_be_evaluated_gives_the_reason(configuration, words):
    (rule,) = configured_rules([configuration])
    assert words in rule.error
    assert not rule.rules
    assert not rule.is_report


def test_the_scan_interval_is_between_ten_seconds_and_an_hour():
    hasty, lazy = configured_rules(
        [asked("Dataloader", scan_interval_us="1"), asked("Dataloader", scan_interval_us="9e15")]
    )
    assert (hasty.interval_s, lazy.interval_s) == (10.0, 3600.0)
    assert default_report().interval_s == 60.0


def test_results_are_stored_below_the_prefix_that_sagemaker_uses():
    assert object_prefix("s3://bucket/a/b/", "job", "ProfilerReport-163") == (
        "bucket",
        "a/b/job/rule-output/ProfilerReport-163/profiler-output/",
    )
    assert object_prefix("s3://bucket", "job", "x") == ("bucket", "job/rule-output/x/profiler-output/")


def test_a_hostile_name_stays_within_its_folder():
    assert object_prefix("s3://b/p", "job", "../../other/<x>")[1] == "p/job/rule-output/other-x/profiler-output/"
    assert object_prefix("s3://b/p", "job", "...")[1] == "p/job/rule-output/rule/profiler-output/"


@pytest.mark.parametrize("name", RULES)
def test_every_rule_accepts_its_own_defaults_as_text(name):
    defaults = {key: str(value) for key, value in RULES[name]().parameters().items()}
    assert rule_with(RULES[name], defaults) == RULES[name]()


def test_an_unknown_parameter_is_refused_with_the_known_names():
    with pytest.raises(ContractError, match="it has scan_interval_us, increase, window, patience"):
        rule_with(RULES["GPUMemoryIncrease"], {"incrase": "5"})
