"""The errors of smdebug."""

from clary.train.debugger.errors import ConfigurationError as SMDebugValueError
from clary.train.debugger.errors import DebuggerError as SMDebugError
from clary.train.debugger.errors import (
    InsufficientInformationForRuleInvocation,
    InvalidCollectionConfiguration,
    InvalidWorker,
    MissingCollectionFiles,
    NoMoreData,
    RuleEvaluationConditionMet,
    ShapeUnavailableForStep,
    StepNotYetAvailable,
    StepUnavailable,
    TensorUnavailable,
    TensorUnavailableForStep,
)
from clary.train.debugger.errors import UnsupportedError as SMDebugNotImplementedError
from clary.train.debugger.modes import ModeKeys as modes

__all__ = [
    "InsufficientInformationForRuleInvocation",
    "InvalidCollectionConfiguration",
    "InvalidWorker",
    "MissingCollectionFiles",
    "NoMoreData",
    "RuleEvaluationConditionMet",
    "SMDebugError",
    "SMDebugNotImplementedError",
    "SMDebugValueError",
    "ShapeUnavailableForStep",
    "StepNotYetAvailable",
    "StepUnavailable",
    "TensorUnavailable",
    "TensorUnavailableForStep",
    "modes",
]
