"""Saves a training's tensors at little cost, reads them while training continues, and evaluates rules on them.

    from clary.train import debugger

    hook = debugger.Hook("/opt/ml/output/tensors", include_collections=["weights", "gradients"])
    hook.register_module(model)
    ...
    trial = debugger.create_trial("/opt/ml/output/tensors")
    for step, loss in trial.tensor("CrossEntropyLoss_output_0").values().items(): ...

Where: docs/debugger.md. `clary.compat.smdebug` offers this package under smdebug's names. torch is imported when a Hook
is first used, numpy when a value is read; the readers of trials and the rules are imported when first used, since a
program that only saves does not need them.

errors, modes, save_config, reduction_config, collection, configuration             the tensors to save, and when
choosing, hook_options                             the tensors to save for one hook, while its program runs
step_counting                                      the counts of steps, continued after a restore
files, tensor_files, folder_claims, writing        standard library only: the layout of files
s3_access, object_blocks, s3_files, host_files     the same layout in S3, and of several hosts
ranks, losses, module_watch, step_capture, hook    torch: the tensors seen in a program
own_hooks, passed_values, metric_file              torch: hooks of subclasses, values that programs pass
surroundings, graphed_callables                    torch: calls in which a hook does nothing
buffers, copying, saving, worker_output            torch: the copies of tensors, and their output
ends, saved_steps, saved_tensor, tensor_catalog, arrays    saved tensors; numpy once a value is read
trial_reader, trial, trial_places, refreshing      reading while programs still write
rule, rules                                        findings in a trial; pure
evaluation                                         one rule in a process beside the program
automatic                                          a hook for programs that do not make one
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from clary.train.debugger.collection import Collection, CollectionKeys
from clary.train.debugger.errors import DebuggerError
from clary.train.debugger.modes import ModeKeys as modes
from clary.train.debugger.reduction_config import ReductionConfig
from clary.train.debugger.save_config import SaveConfig, SaveConfigMode

if TYPE_CHECKING:
    from clary.train.debugger.automatic import install_from_config
    from clary.train.debugger.hook import Hook, get_hook
    from clary.train.debugger.reading.trial import Trial
    from clary.train.debugger.reading.trial_places import create_trial
    from clary.train.debugger.rule import Finding, Rule, invoke_rule

__all__ = [
    "Collection",
    "CollectionKeys",
    "DebuggerError",
    "Finding",
    "Hook",
    "ReductionConfig",
    "Rule",
    "SaveConfig",
    "SaveConfigMode",
    "Trial",
    "create_trial",
    "get_hook",
    "install_from_config",
    "invoke_rule",
    "modes",
]


_ON_DEMAND = {  # name -> its module
    "Finding": "rule",
    "Hook": "hook",
    "Rule": "rule",
    "Trial": "reading.trial",
    "create_trial": "reading.trial_places",
    "get_hook": "hook",
    "install_from_config": "automatic",
    "invoke_rule": "rule",
}


def __getattr__(name: str) -> Any:
    if name in _ON_DEMAND:
        return getattr(importlib.import_module(f"{__name__}.{_ON_DEMAND[name]}"), name)
    raise AttributeError(f"module {__name__} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
