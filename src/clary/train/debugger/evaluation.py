"""Evaluation of one rule on the tensors of a job, in a process beside the program.

Where: the agent of the job's first host runs `python -m clary.train.debugger.evaluation ORDER` in the job's
environment, reads the order's `status_file`, and ends the process if it is late. The process evaluates one step after
the other until the training has ended or the rule has a finding. An order and a status:

    {"name": "VanishingGradient", "rule": "VanishingGradient", "source_file": "", "parameters": {"threshold": "1e-7"},
     "tensors_folder": "/opt/ml/output/tensors", "is_marked": true, "other_trials": [], "status_file": "..."}

    {"status": "IssuesFound", "details": "step 12: ..."}

`is_marked` means that only agents' marks end the training, since another worker may follow a worker that ends. For a
job of several hosts an order also has the URI under which the other hosts store their tensors, the name of this host's
end mark, and the time (seconds since 1970) before which stored files belong to an earlier attempt:

    "tensors_uri": "s3://bucket/tensors/demo/debug-output/", "own_end": "ended/algo-1.try-1.of-2", "since": 0.0
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from clary.contract.job_rules import MAX_DETAILS_CHARACTERS
from clary.train.debugger.errors import NoMoreData, RuleEvaluationConditionMet
from clary.train.debugger.files import LocalFiles
from clary.train.debugger.reading.host_files import HostsFiles
from clary.train.debugger.reading.s3_files import open_s3_files
from clary.train.debugger.reading.trial import Trial
from clary.train.debugger.reading.trial_places import create_trial
from clary.train.debugger.rule import Finding, Rule, invoke_rule
from clary.train.debugger.rules import make_rule
from clary.train.debugger.tensor_files import write_whole

IN_PROGRESS, NO_ISSUES, ISSUES, ERROR = "InProgress", "NoIssuesFound", "IssuesFound", "Error"  # RuleEvaluationStatus
MODULE_NAME = "clary_custom_rule"  # name of the module that a user's file is imported as
_NICENESS = 10  # lower priority than training
_CACHE_BYTES = 128 * 1024**2  # cache of each rule; most rules read a step once
_LISTED_NAMES = 5  # classes of a file that an error names


def main(arguments: list[str]) -> int:
    """Evaluate the rule of one order; the exit code is 0 for every verdict, 1 without a verdict."""
    order = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    status_file = Path(order["status_file"])
    _tell(status_file, IN_PROGRESS, "")
    try:
        status, details = evaluate(order)
    except Exception as error:  # noqa: BLE001 - boundary: whatever is wrong with a rule is its own affair
        traceback.print_exc()
        status, details = ERROR, f"{type(error).__name__}: {error}"
    _tell(status_file, status, details)
    return 1 if status == ERROR else 0


def evaluate(order: Mapping[str, Any]) -> tuple[str, str]:
    """Evaluate a rule until it has a finding or has seen all steps; return status and details.

    Raises: any error from making or evaluating the rule.
    """
    trial, hosts = _open_trial(order)
    rule = _make(order, trial)
    try:
        invoke_rule(rule, raise_eval_cond=True)
    except RuleEvaluationConditionMet as met:
        return ISSUES, in_words(met)
    except NoMoreData:
        pass
    num_steps = len(trial.steps(show_incomplete_steps=True))
    if num_steps == 0:
        return ERROR, (
            f"no step was saved in {order['tensors_folder']}: the program has trained no torch model, or saves at steps"
            " that it did not reach; see CollectionConfigurations and save_interval"
        )
    num_seen = rule.report.get("Datapoints", 0)
    hint = "" if num_seen else ": none had the rule's tensors; see CollectionConfigurations"
    num_workers = len(trial.workers())
    whose = "" if hosts is None else f" of {num_workers} worker{'' if num_workers == 1 else 's'}"
    late = "; some host had not stored everything in time" if hosts is not None and hosts.is_late else ""
    return NO_ISSUES, f"{num_seen} of {num_steps} saved steps{whose} were looked at{hint}{late}"


def _open_trial(order: Mapping[str, Any]) -> tuple[Trial, HostsFiles | None]:
    """Return the trial of an order, and the files of all hosts if the job has several."""
    folder, name, since = order["tensors_folder"], order["name"], order.get("since", 0.0)
    own_end, is_marked = order.get("own_end", ""), order.get("is_marked", False)
    if not own_end:
        return Trial(LocalFiles(Path(folder)), name=name, path=folder, since=since, ends_by_mark=is_marked), None
    far = None
    if order.get("tensors_uri"):
        # this folder's removal also removes cached files, even if this process is killed
        own = Path(order["status_file"]).parent
        far = open_s3_files(order["tensors_uri"], cache_bytes=_CACHE_BYTES, cache_place=own)
    files = HostsFiles(LocalFiles(Path(folder)), far, own_end=Path(own_end).name)
    return Trial(files, name=name, path=folder, since=since, ends_by_mark=is_marked), files


def in_words(met: RuleEvaluationConditionMet) -> str:
    """Return a rule's finding as text: its sentence, followed by tensor and details that the sentence lacks."""
    found = met.finding
    if not isinstance(found, Finding):
        return str(met)
    more = {"tensor": found.tensor, **found.details}
    said = ", ".join(f"{name} {_short(value)}" for name, value in more.items() if value not in ("", None))
    return f"{found.text} ({said})" if said and said not in found.text else found.text


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _make(order: Mapping[str, Any], trial: Trial) -> Rule:
    """Return the rule, built-in or from the user's file."""
    name, parameters = order["rule"], dict(order["parameters"])
    if not name:
        raise ValueError("RuleParameters have no rule_to_invoke, which names the rule")
    others = [create_trial(folder) for folder in order["other_trials"]]
    if order["source_file"]:
        rule_class = load_rule(Path(order["source_file"]), name)
        if others and "other_trials" in inspect.signature(rule_class).parameters:
            parameters["other_trials"] = others
        rule = rule_class(trial, **parameters)
        if not hasattr(rule, "invoke"):
            raise TypeError(
                f"{name} is no rule: it does not derive from clary.train.debugger.Rule (smdebug.rules.Rule)"
            )
        return rule  # type: ignore[no-any-return]
    if others:
        parameters["other_trials"] = others if len(others) > 1 else others[0]
    return make_rule(name, trial, parameters)


def load_rule(file: Path, name: str) -> Callable[..., Any]:
    """Import a file and return its class with a given name.

    Raises: AttributeError naming the classes of the file; any error of the import.
    """
    spec = importlib.util.spec_from_file_location(MODULE_NAME, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file.name} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE_NAME] = module
    sys.path.insert(0, str(file.parent))
    spec.loader.exec_module(module)
    found: Callable[..., Any] | None = getattr(module, name, None)
    if found is None:
        own = [key for key, one in vars(module).items() if inspect.isclass(one) and one.__module__ == MODULE_NAME]
        raise AttributeError(f"{file.name} has no {name}; it has {', '.join(own[:_LISTED_NAMES]) or 'no class'}")
    return found


def _tell(status_file: Path, status: str, details: str) -> None:
    document = {"status": status, "details": details[:MAX_DETAILS_CHARACTERS]}
    write_whole(status_file, [memoryview(json.dumps(document).encode())])


if __name__ == "__main__":
    # Some schedulers signal every process of a job step; a rule continues until the agent ends it.
    for _number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(_number, signal.SIG_IGN)
    sys.exit(main(sys.argv[1:]))
