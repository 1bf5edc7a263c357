"""The profiler's members of requests: refused, warned of, merged."""

import pytest

from clary.base.errors import WireError
from clary.control.services.sagemaker.profiler_requests import (
    INTERVALS_MS,
    check_profiler,
    merged_rules,
    profiler_warnings,
)

IMAGE = "895741380848.dkr.ecr.us-west-2.amazonaws.com/sagemaker-debugger-rules:latest"


def rule(name, kind="ProfilerReport", **members):
    return {
        "RuleConfigurationName": name,
        "RuleEvaluatorImage": IMAGE,
        "RuleParameters": {"rule_to_invoke": kind},
        **members,
    }


def test_known_intervals_pass_and_others_are_refused():
    for interval in INTERVALS_MS:
        check_profiler({"ProfilerConfig": {"ProfilingIntervalInMilliseconds": interval}})
    with pytest.raises(WireError, match=r"must be one of 100, 200, 500, 1000, 5000, 60000; got 250"):
        check_profiler({"ProfilerConfig": {"ProfilingIntervalInMilliseconds": 250}})


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"ProfilerConfig": {"S3OutputPath": "https://b/p"}}, "ProfilerConfig.S3OutputPath must be s3://bucket/prefix"),
        ({"ProfilerRuleConfigurations": [rule("a"), rule("a")]}, "names must be unique; 'a' appears twice"),
        ({"ProfilerRuleConfigurations": [rule("a", S3OutputPath="https://b/p")]}, "S3OutputPath of rule 'a' must be"),
        ({"ProfilerRuleConfigurations": [rule(str(number)) for number in range(21)]}, "at most 20 profiler rules; 21"),
    ],
)
def test_an_invalid_profiler_configuration_is_refused(request_, words):
    with pytest.raises(WireError, match=words) as refused:
        check_profiler(request_)
    assert refused.value.code == "ValidationException"


def test_a_request_without_a_profiler_passes():
    check_profiler({})
    assert profiler_warnings({}) == ()


def test_rules_that_cannot_be_evaluated_are_warned_of_by_name():
    request = {
        "ProfilerConfig": {"DisableProfiler": True},
        "ProfilerRuleConfigurations": [rule("deep", "DetailedProfilerProcessing"), rule("fine", "Dataloader")],
    }
    found = profiler_warnings(request)
    assert len(found) == 2
    assert found[0].startswith("profiler rule deep: there is no profiler rule 'DetailedProfilerProcessing'")
    assert "DisableProfiler" in found[1]


def test_an_update_without_rules_keeps_the_existing_rules():
    assert merged_rules([rule("a")], []) == [rule("a")]
    assert merged_rules([], [rule("a")]) == [rule("a")]


def test_an_interval_is_warned_of_if_the_settings_measure_nothing():
    request = {"ProfilerConfig": {"ProfilingIntervalInMilliseconds": 100}}
    assert profiler_warnings(request) == ()
    (sentence,) = profiler_warnings(request, is_measured=False)
    assert "metrics_interval_s = 0" in sentence
    assert profiler_warnings({"ProfilerConfig": {}}, is_measured=False) == ()
    rules = {"ProfilerRuleConfigurations": [rule("r")]}
    assert profiler_warnings(rules) == ()
    (sentence,) = profiler_warnings(rules, is_measured=False)
    assert sentence.startswith("profiler rules have nothing to look at")


def debug_rules(*rules):
    return {"DebugRuleConfigurations": list(rules)}


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"rule_to_invoke": "LossNotDecreasingg"}, "there is no rule 'LossNotDecreasingg' (did you mean LossNotDecr"),
        (
            {"rule_to_invoke": "AllZero", "treshold": "1"},
            "AllZero has no parameter 'treshold' (did you mean threshold?",
        ),
        ({}, "RuleParameters have no rule_to_invoke"),
        ({"source_s3_uri": "s3://b/rules.py"}, "RuleParameters have no rule_to_invoke"),
    ],
)
def test_debugger_rules_that_will_end_in_error_are_warned_of(parameters, words):
    (sentence,) = profiler_warnings(debug_rules(rule("r") | {"RuleParameters": parameters}))
    assert sentence.startswith(f"rule r: {words}")
    assert sentence.endswith("; its evaluation will end in Error")


def test_debugger_rules_that_can_be_evaluated_are_not_mentioned():
    own = rule("own") | {"RuleParameters": {"rule_to_invoke": "Mine", "source_s3_uri": "s3://b/rules.py", "x": "1"}}
    several = {"rule_to_invoke": "SimilarAcrossRuns", "other_trial_0": "s3://b/t", "action_json": "[]"}
    assert profiler_warnings(debug_rules(own, rule("built", "AllZero"), rule("t") | {"RuleParameters": several})) == ()


def test_an_unknown_member_of_a_profiling_window_is_warned_of():
    config = {"ProfilingParameters": {"DetailedProfilingConfig": '{"StartStepp": 1}'}}
    (sentence,) = profiler_warnings({"ProfilerConfig": config})
    assert sentence.startswith("ProfilerConfig.ProfilingParameters: DetailedProfilingConfig: StartStepp has no effect")
