"""Rules as the SDK's own package has them: names, parameters, defaults, and the collections that they ask for."""

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
# The parameter of ours that has to find what the SDK has saved for a rule by an expression of its own.
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


def test_every_debugger_rule_of_the_sdk_is_known_and_takes_what_its_configuration_says(of_the_sdk):
    configurations = [item["DebugRuleConfiguration"] for item in of_the_sdk["debugger"].values()]
    names = {item["RuleParameters"]["rule_to_invoke"] for item in configurations}
    assert names == {*debugger_rules.RULES, *debugger_rules.UNSUPPORTED}
    for item in configurations:
        given = {name: value for name, value in item["RuleParameters"].items() if name != "rule_to_invoke"}
        name = item["RuleParameters"]["rule_to_invoke"]
        if name in debugger_rules.RULES:
            known = {key: parameter.default for key, parameter in parameters_of(debugger_rules.RULES[name]).items()}
            assert given.items() <= {key: str(value) for key, value in known.items()}.items(), name


def test_what_the_sdk_saves_for_a_rule_is_what_the_rule_looks_at(of_the_sdk):
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
