"""Built-in rules by their names in `rule_to_invoke` of requests. Their docstrings have the formulas.

Where: docs/debugger.md lists them. Parameters and defaults are those of AWS's "List of Debugger built-in rules".
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from clary.train.debugger.errors import ConfigurationError, UnsupportedError
from clary.train.debugger.reading.trial import Trial
from clary.train.debugger.rule import Rule
from clary.train.debugger.rules.activations import DeadRelu, SaturatedActivation
from clary.train.debugger.rules.base import BuiltInRule
from clary.train.debugger.rules.classes import ClassImbalance, Confusion
from clary.train.debugger.rules.decreasing import LossNotDecreasing
from clary.train.debugger.rules.exploding import ExplodingTensor
from clary.train.debugger.rules.gradients import VanishingGradient
from clary.train.debugger.rules.inputs import CheckInputImages, NLPSequenceRatio
from clary.train.debugger.rules.overfitting import Overfit, Overtraining
from clary.train.debugger.rules.runs import SimilarAcrossRuns
from clary.train.debugger.rules.stalled import StalledTrainingRule
from clary.train.debugger.rules.values import AllZero, TensorVariance, UnchangedTensor
from clary.train.debugger.rules.weights import PoorWeightInitialization, WeightUpdateRatio

RULES: Mapping[str, type[BuiltInRule]] = {
    rule.__name__: rule
    for rule in (
        AllZero,
        CheckInputImages,
        ClassImbalance,
        Confusion,
        DeadRelu,
        ExplodingTensor,
        LossNotDecreasing,
        NLPSequenceRatio,
        Overfit,
        Overtraining,
        PoorWeightInitialization,
        SaturatedActivation,
        SimilarAcrossRuns,
        StalledTrainingRule,
        TensorVariance,
        UnchangedTensor,
        VanishingGradient,
        WeightUpdateRatio,
    )
}
UNSUPPORTED = (
    "CreateXgboostReport",
    "FeatureImportanceOverweight",
    "TreeDepth",
)
_NOT_PARAMETERS = {"rule_to_invoke", "source_s3_uri"}  # keys of RuleParameters that are not passed to the rule

__all__ = ["RULES", "UNSUPPORTED", "make_rule", "parameters_of", *RULES]


def parameters_of(rule: type[Rule]) -> dict[str, inspect.Parameter]:
    """Return a rule's parameters, except the trial, with their defaults."""
    given = inspect.signature(rule).parameters.values()
    return {one.name: one for one in given if one.name != "base_trial" and one.kind is not one.KEYWORD_ONLY}


def make_rule(name: str, base_trial: Trial, parameters: Mapping[str, str] | None = None) -> BuiltInRule:
    """Return a built-in rule.

    Args:
        parameters: text values of a request's RuleParameters.

    Raises: UnsupportedError for an unknown name, ConfigurationError for an unknown parameter,
        InsufficientInformationForRuleInvocation for a missing parameter.
    """
    if name not in RULES:
        hint = "is not supported" if name in UNSUPPORTED else "does not exist"
        raise UnsupportedError(f"the built-in rule {name!r} {hint}; there are {', '.join(RULES)}")
    known = parameters_of(RULES[name])
    given = {key: value for key, value in (parameters or {}).items() if key not in _NOT_PARAMETERS}
    for key in given:
        if key not in known:
            raise ConfigurationError(f"rule {name} has no parameter {key!r}; it has {', '.join(known)}")
    rule: Callable[..., BuiltInRule] = RULES[name]
    return rule(base_trial, **given)
