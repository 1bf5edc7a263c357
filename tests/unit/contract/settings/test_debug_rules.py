"""The list of built-in rules over tensors by which requests are validated."""

import pytest

from clary.contract.settings.debug_rules import PARAMETERS, rule_problem
from clary.train.debugger.rules import RULES, parameters_of


def test_the_list_equals_the_rules_that_jobs_evaluate():
    assert {name: tuple(parameters_of(rule)) for name, rule in RULES.items()} == PARAMETERS


@pytest.mark.parametrize("rule", PARAMETERS)
def test_a_rule_with_all_its_parameters_has_no_problem(rule):
    assert rule_problem(rule, dict.fromkeys(PARAMETERS[rule], "1")) == ""
    assert rule_problem(rule, {}) == ""


@pytest.mark.parametrize(
    ("rule", "parameters", "words"),
    [
        ("", {}, "RuleParameters have no rule_to_invoke"),
        ("LossNotDecresing", {}, "there is no rule 'LossNotDecresing' (did you mean LossNotDecreasing?)"),
        ("CreateXgboostReport", {}, "there is no rule 'CreateXgboostReport'"),
        ("VanishingGradient", {"treshold": "1"}, "VanishingGradient has no parameter 'treshold' (did you mean thres"),
        ("AllZero", {"threshold": "1", "colour": "1"}, "AllZero has no parameter 'colour'; it has collection_names, "),
    ],
)
def test_invalid_parameters_are_reported_with_the_nearest_name(rule, parameters, words):
    assert rule_problem(rule, parameters).startswith(words)
