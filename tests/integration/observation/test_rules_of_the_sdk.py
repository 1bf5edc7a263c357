"""Clary's rules compared with the SDK's package: names, parameters, defaults, and the required collections."""

import json
import subprocess
from pathlib import Path

import pytest
from running_service import SDK2_PYTHON

from clary.control.profiling import rules as profiler_rules
from clary.train.debugger import rules as debugger_rules
from clary.train.debugger.collection import DEFAULT_REGEXES
from clary.train.debugger.rules import parameters_of

pytestmark = [pytest.mark.clients, pytest.mark.timeout(120), pytest.mark.needs("sdk2")]

PROGRAM = Path(__file__).with_name("sdk_rules_program.py")
# Clary's parameter whose default must equal the SDK's expression for the tensors saved for the rule.
EXPRESSIONS = {
    "CheckInputImages": "regex",
    "DeadRelu": "tensor_regex",
    "NLPSequenceRatio": "tensor_regex",
    "PoorWeightInitialization": "activation_inputs_regex",
}


@pytest.fixture(scope="module")
def of_the_sdk():
    completed = subprocess.run([SDK2_PYTHON, PROGRAM], capture_output=True, text=True, timeout=100)
    assert completed.returncode == 0, completed.stderr[-3000:]
    return json.loads(completed.stdout)


def test_every_debugger_rule_of_the_sdk_is_known_with_its_parameters(of_the_sdk):
    configurations = [item["DebugRuleConfiguration"] for item in of_the_sdk["debugger"].values()]
    names = {item["RuleParameters"]["rule_to_invoke"] for item in configurations}
    assert names == {*debugger_rules.RULES, *debugger_rules.UNSUPPORTED}
    for item in configurations:
        given = {name: value for name, value in item["RuleParameters"].items() if name != "rule_to_invoke"}
        name = item["RuleParameters"]["rule_to_invoke"]
        if name in debugger_rules.RULES:
            known = {key: parameter.default for key, parameter in parameters_of(debugger_rules.RULES[name]).items()}
            assert given.items() <= {key: str(value) for key, value in known.items()}.items(), name


def test_each_rule_evaluates_the_tensors_that_the_sdk_saves_for_it(of_the_sdk):
    for item in of_the_sdk["debugger"].values():
        name = item["DebugRuleConfiguration"]["RuleParameters"]["rule_to_invoke"]
        if name not in debugger_rules.RULES:
            continue
        for collection in item.get("CollectionConfigurations", ()):
            expression = collection["CollectionParameters"].get("include_regex")
            if expression is None:
                assert collection["CollectionName"] in DEFAULT_REGEXES, name
            else:
                assert parameters_of(debugger_rules.RULES[name])[EXPRESSIONS[name]].default == expression


def test_profiler_rules_have_the_parameters_and_defaults_of_the_sdk(of_the_sdk):
    assert of_the_sdk["profiler"].pop("ProfilerReport") == {}
    ours = {name: rule().parameters() for name, rule in profiler_rules.RULES.items()}
    assert ours == of_the_sdk["profiler"]
