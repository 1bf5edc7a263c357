"""Members of a request about saved tensors: hook, rules over them, TensorBoard. Pure.

Where: `validation` checks the members with this module when a job is created, and `reconcile.planning` puts rules and
mirrors into the launch plan. A job with an unknown rule is not refused: the rule's evaluation ends in Error, as in
SageMaker.
Source: API_DebugHookConfig, API_DebugRuleConfiguration, API_TensorBoardOutputConfig; sagemaker 2.257
`debugger.Rule`, which names the rule to run in RuleParameters: rule_to_invoke, source_s3_uri, other_trial_0...
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from clary.base.errors import WireError
from clary.contract.job_rules import MirrorPlan, RulePlan
from clary.contract.settings.built_in_algorithms import is_xgboost
from clary.contract.settings.debug_parameters import OF_COLLECTIONS, OF_HOOKS, parameter_problem
from clary.contract.settings.hyperparameters import named_program
from clary.contract.settings.named_places import local_folder_problem, s3_uri_problem
from clary.control.jobs.rules.rule_actions import STOP_TRAINING, UNSENDABLE, actions_of, stops

DEBUG_MEMBERS = {"DebugHookConfig": "debug-output", "TensorBoardOutputConfig": "tensorboard-output"}
_WORDS = {"DebugHookConfig": "tensors", "TensorBoardOutputConfig": "TensorBoard events"}
_OTHER_TRIAL = "other_trial_"
_NOT_OF_THE_RULE = ("rule_to_invoke", "source_s3_uri", "action_json")


def check(request: Mapping[str, Any]) -> None:
    """Refuse members that hooks and rules could not use. Raises: WireError(ValidationException)."""
    for member in DEBUG_MEMBERS:
        config = request.get(member)
        uri = None if config is None else config["S3OutputPath"]
        if uri is not None and (problem := s3_uri_problem(uri)) is not None:
            raise _refusal(f"{member}.S3OutputPath must be s3://bucket/prefix, got {uri!r}: {problem}.")
        path = (config or {}).get("LocalPath")
        if path is not None and (".." in path.split("/") or not path.isprintable()):
            raise _refusal(f"{member}.LocalPath must be the whole path of a folder, got {path!r}.")
        if path is not None and (problem := local_folder_problem(f"{member}.LocalPath", path, is_mirrored=True)):
            raise _refusal(problem)
    _check_hook(request.get("DebugHookConfig") or {})
    configs = request.get("DebugRuleConfigurations") or ()
    doubled = [name for name, n in Counter(item["RuleConfigurationName"] for item in configs).items() if n > 1]
    if doubled:
        raise _refusal(f"Rule configuration names must be unique; {doubled[0]!r} occurs twice.")
    for item in configs:
        name, parameters = item["RuleConfigurationName"], item.get("RuleParameters") or {}
        uri = parameters.get("source_s3_uri")
        problem = None if uri is None else s3_uri_problem(uri)
        if problem is not None:
            raise _refusal(f"Rule {name!r}: source_s3_uri must be s3://bucket/file.py, got {uri!r}: {problem}.")
        try:
            actions = actions_of(parameters)
        except ValueError as error:
            raise _refusal(f"Rule {name!r}: {error}.") from error
        unknown = [action.name for action in actions if action.name not in (STOP_TRAINING, *UNSENDABLE)]
        if unknown:
            raise _refusal(f"Rule {name!r} has an action {unknown[0]!r}; expected stoptraining, email or sms.")


def _check_hook(config: Mapping[str, Any]) -> None:
    if problem := parameter_problem(config.get("HookParameters") or {}, OF_HOOKS):
        raise _refusal(f"DebugHookConfig.HookParameters {problem}.")
    for number, item in enumerate(config.get("CollectionConfigurations") or ()):
        name = item.get("CollectionName")
        if not name:
            raise _refusal(f"DebugHookConfig.CollectionConfigurations[{number}] has no CollectionName.")
        if problem := parameter_problem(item.get("CollectionParameters") or {}, OF_COLLECTIONS):
            raise _refusal(f"DebugHookConfig: collection {name!r} {problem}.")


def warnings(request: Mapping[str, Any], *, job_name: str, num_hosts: int) -> list[str]:
    """Return warnings about rules and actions whose effect will differ from the request.

    Args:
        request: a CreateTrainingJob request that was not refused.
        job_name: compared with the names in actions.
        num_hosts: number of hosts in all instance groups.
    """
    found = []
    configs = request.get("DebugRuleConfigurations") or ()
    collections = (request.get("DebugHookConfig") or {}).get("CollectionConfigurations")
    if (configs or collections) and _runs_built_in_xgboost(request):
        found.append(
            "the built-in algorithm XGBoost saves no tensors here: DebugHookConfig has no effect, and rules over "
            "tensors end in Error; its losses are metrics of the job"
        )
    for item in configs:
        name, parameters = item["RuleConfigurationName"], item.get("RuleParameters") or {}
        names = [action.name for action in actions_of(parameters)]
        unsendable = [action for action in names if action in UNSENDABLE]
        if unsendable:
            found.append(
                f"rule {name}: {' and '.join(dict.fromkeys(unsendable))} cannot be sent from here; findings stand in "
                "describe, and go to the address of the setting rule_webhook_url"
            )
        if STOP_TRAINING in names and not stops(parameters, job_name):
            found.append(f"rule {name}: its action stops jobs of another name, and a rule stops its own job alone")
    if configs and num_hosts > 1:
        if request.get("EnableNetworkIsolation"):
            found.append(
                "debugger rules run on the first host and see what is saved there alone: EnableNetworkIsolation keeps "
                "them from S3, where other hosts store theirs"
            )
        elif ((request.get("DebugHookConfig") or {}).get("HookParameters") or {}).get("include_workers") != "all":
            found.append(
                "debugger rules see what is saved, and include_workers=one, the default, saves on rank 0 of each "
                "training alone; include_workers=all in HookParameters saves on all hosts"
            )
    return found


def _runs_built_in_xgboost(request: Mapping[str, Any]) -> bool:
    specification = request.get("AlgorithmSpecification") or {}
    if specification.get("ContainerEntrypoint") or not is_xgboost(str(specification.get("TrainingImage") or "")):
        return False
    return named_program(request.get("HyperParameters") or {}, request.get("Environment") or {}) is None


def rule_plans(request: Mapping[str, Any]) -> tuple[RulePlan, ...]:
    """Return the plans of the rules that run while the program runs."""
    return tuple(_plan(item) for item in request.get("DebugRuleConfigurations") or ())


def _plan(config: Mapping[str, Any]) -> RulePlan:
    given: Mapping[str, str] = config.get("RuleParameters") or {}
    others = sorted((key for key in given if key.startswith(_OTHER_TRIAL)), key=lambda key: (len(key), key))
    return RulePlan(
        name=config["RuleConfigurationName"],
        rule=given.get("rule_to_invoke", ""),
        source_uri=given.get("source_s3_uri", ""),
        other_trials=tuple(given[key] for key in others),
        parameters={key: value for key, value in given.items() if key not in (*_NOT_OF_THE_RULE, *others)},
    )


def mirror_plans(request: Mapping[str, Any], documents: Mapping[str, Any], *, job_name: str) -> tuple[MirrorPlan, ...]:
    """Return the plans of the folders that are mirrored to S3 while the program runs.

    Args:
        request: a CreateTrainingJob request that was not refused.
        documents: file stem -> document, as programs find them below /opt/ml/input/config; they contain LocalPath.
        job_name: part of the destination.
    """
    plans = []
    for member, folder in DEBUG_MEMBERS.items():
        document = documents.get(member.lower())
        if document is not None and request.get(member) is not None:
            uri = f"{document['S3OutputPath'].rstrip('/')}/{job_name}/{folder}/"
            plans.append(
                MirrorPlan(
                    what=_WORDS[member],
                    local_path=document["LocalPath"],
                    s3_uri=uri,
                    marks_end=member == "DebugHookConfig",
                )
            )
    return tuple(plans)


def _refusal(sentence: str) -> WireError:
    return WireError("ValidationException", sentence)
