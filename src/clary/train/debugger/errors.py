"""Errors of saved tensors, and findings of rules; the names are smdebug's.

DebuggerError
|-- ConfigurationError            an invalid configuration
|-- UnsupportedError              a part of smdebug that this library lacks
|-- TensorFileError               a file that is incomplete or has another format
|-- FolderTaken                   another program saves under this worker's name
|-- StoreError                    the object store did not answer as expected
|-- StepNotYetAvailable           it is not known yet whether the step will be saved
|-- StepUnavailable               the step was not saved and will not be
|-- NoMoreData                    training has ended before the step
|-- TensorUnavailable             no step has the tensor so far
|-- TensorUnavailableForStep      this step does not have the tensor
|-- ShapeUnavailableForStep       the step has neither value nor shape of the tensor
|-- InvalidWorker                 the worker has not saved the tensor
|-- MissingCollectionFiles        training has ended without saving a tensor
|-- InvalidCollectionConfiguration
|-- InsufficientInformationForRuleInvocation
`-- RuleEvaluationConditionMet    no failure: a rule has a finding
"""

from __future__ import annotations

from clary.train.debugger.modes import ModeKeys


class DebuggerError(Exception):
    """Root of the errors that this library raises on purpose."""


class ConfigurationError(DebuggerError, ValueError):
    """An invalid configuration; the text names the parameter and its possible values."""


class UnsupportedError(DebuggerError, NotImplementedError):
    """A part of smdebug that this library lacks; the text names alternatives."""


class TensorFileError(DebuggerError):
    """A file of tensors that is incomplete, or has another format."""


class FolderTaken(DebuggerError):
    """Another program saves to this folder under the same worker's name."""


class StoreError(DebuggerError, OSError):
    """The object store did not answer as expected; the text names bucket and key."""


class StepNotYetAvailable(DebuggerError):
    """The step may still be saved."""

    def __init__(self, step: int, mode: ModeKeys) -> None:
        super().__init__(f"step {step} of mode {mode.name} was not saved yet; training has not passed it")
        self.step, self.mode = step, mode


class StepUnavailable(DebuggerError):
    """Training has passed the step without saving it."""

    def __init__(self, step: int, mode: ModeKeys) -> None:
        super().__init__(f"step {step} of mode {mode.name} was not saved; trial.steps() lists the saved ones")
        self.step, self.mode = step, mode


class NoMoreData(DebuggerError):
    """Training has ended before the step."""

    def __init__(self, step: int, mode: ModeKeys, last_step: int | None) -> None:
        super().__init__(f"step {step} of mode {mode.name} does not exist: training has ended, the last is {last_step}")
        self.step, self.mode, self.last_step = step, mode, last_step


class TensorUnavailable(DebuggerError):
    """No step seen so far has the tensor."""

    def __init__(self, tname: str) -> None:
        super().__init__(f"tensor {tname} was not saved; trial.tensor_names() lists the saved ones")
        self.tname = tname


class TensorUnavailableForStep(DebuggerError):
    """The step has no value of this tensor, or lacks the requested reduction."""

    def __init__(self, tname: str, step: int, mode: ModeKeys = ModeKeys.GLOBAL, has_reductions: bool = False) -> None:
        hint = "; only reductions of it were saved" if has_reductions else ""
        super().__init__(f"tensor {tname} was not saved at step {step} of mode {mode.name}{hint}")
        self.tname, self.step, self.mode, self.has_reductions = tname, step, mode, has_reductions


class ShapeUnavailableForStep(DebuggerError):
    """The step has neither the tensor's value nor its shape."""

    def __init__(self, tname: str, step: int, mode: ModeKeys = ModeKeys.GLOBAL) -> None:
        super().__init__(f"the shape of tensor {tname} was not saved at step {step} of mode {mode.name}")
        self.tname, self.step, self.mode = tname, step, mode


class InvalidWorker(DebuggerError):
    """The worker has not saved the requested tensor."""

    def __init__(self, worker: str) -> None:
        super().__init__(f"worker {worker} has not saved this; trial.workers() lists the workers")
        self.worker = worker


class MissingCollectionFiles(DebuggerError):
    """Training has ended without saving anything."""

    def __init__(self, path: object = "") -> None:
        super().__init__(f"training has ended and {path or 'its folder'} holds no collections: was a hook installed?")


class InvalidCollectionConfiguration(DebuggerError):
    """A collection to which no tensor can belong."""

    def __init__(self, c_name: str) -> None:
        super().__init__(f"collection {c_name} has neither include_regex nor names of tensors: give one of them")
        self.c_name = c_name


class InsufficientInformationForRuleInvocation(DebuggerError):
    """A rule that lacks a parameter."""

    def __init__(self, rule_name: str, message: str) -> None:
        super().__init__(f"rule {rule_name} cannot be evaluated: {message}")
        self.rule_name, self.message = rule_name, message


class RuleEvaluationConditionMet(DebuggerError):
    """The condition of a rule is met.

    Args:
        end_of_rule: whether the rule will find nothing more.
        finding: the rule's Finding; None if the rule returned only True.
    """

    def __init__(self, rule_name: str, step: int, end_of_rule: bool = False, finding: object = None) -> None:
        said = "" if finding is None or str(finding) == "True" else f": {finding}"  # numpy has its own True
        super().__init__(f"rule {rule_name} has fired at step {step}{said}")
        self.rule_name, self.step, self.end_of_rule, self.finding = rule_name, step, end_of_rule, finding
