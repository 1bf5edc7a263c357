"""Experiments, trials, components and artifacts that the key of a job may use.

Where: `api_rules` calls `decide` for operations of experiments. A job may use the records named by its
ExperimentConfig, its own component, and records that it has made. Records that a job has made carry a tag, which the
caller of `decide` checks (`Decision.if_made`). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clary.control.permissions.grants import ALLOWED, Decision, Grants, all_of

Params = Mapping[str, Any]

MADE_BY = "clary:made-by-job"  # tag of records that a job's key has made
EXPERIMENT, TRIAL, COMPONENT, ARTIFACT = "experiment", "experiment-trial", "experiment-trial-component", "artifact"
JOB = "training-job"
NO = Decision(False)
# Member that names a record -> its kind, as in ARNs.
_MEMBERS = {
    "ExperimentName": EXPERIMENT,
    "TrialName": TRIAL,
    "TrialComponentName": COMPONENT,
}
# Operation -> members that must name records of the job; other members are free.
_NEEDS: Mapping[str, tuple[str, ...]] = {
    "CreateExperiment": ("ExperimentName",),
    "DescribeExperiment": ("ExperimentName",),
    "UpdateExperiment": ("ExperimentName",),
    "CreateTrial": ("ExperimentName", "TrialName"),
    "DescribeTrial": ("TrialName",),
    "UpdateTrial": ("TrialName",),
    "AssociateTrialComponent": ("TrialName", "TrialComponentName"),
    "DisassociateTrialComponent": ("TrialName", "TrialComponentName"),
    "CreateTrialComponent": ("TrialComponentName",),
    "DescribeTrialComponent": ("TrialComponentName",),
    "UpdateTrialComponent": ("TrialComponentName",),
    "CreateArtifact": (),
    "BatchPutMetrics": ("TrialComponentName",),
}
_OF_ARNS: Mapping[str, tuple[str, ...]] = {
    "DescribeArtifact": ("ArtifactArn",),
    "UpdateArtifact": ("ArtifactArn",),
    "AddAssociation": ("SourceArn", "DestinationArn"),
    "DeleteAssociation": ("SourceArn", "DestinationArn"),
    "ListTags": ("ResourceArn",),
}
_LISTINGS = ("ListTrials", "ListTrialComponents", "ListAssociations")
# Suffixes of the names that the service gives to jobs' records; such records may be created when they are first
# requested.
_OF_JOBS = ("-aws-training-job", "-aws-trial")
_OTHERS = ("Search", "BatchGetMetrics")
OPERATIONS = frozenset(
    ("sagemaker-metrics" if name.startswith("Batch") else "sagemaker", name)
    for name in (*_NEEDS, *_OF_ARNS, *_LISTINGS, *_OTHERS)
)


def decide(grants: Grants, operation: str, params: Params) -> Decision:
    """Decide whether a call of an operation of `OPERATIONS` is allowed.

    Args:
        grants: of the job's key.
        operation: name without the service, such as `CreateTrial`.
        params: parsed and valid.
    Returns: allowed, refused, or allowed under the condition `if_made`, which the caller checks.
    """
    if operation in _NEEDS:
        return all_of(_named(grants, _MEMBERS[member], params.get(member)) for member in _NEEDS[operation])
    if operation in _OF_ARNS:
        return all_of(_by_arn(grants, params.get(member)) for member in _OF_ARNS[operation])
    if operation == "BatchGetMetrics":
        queries = params.get("MetricQueries") or ()
        return all_of(_of_values(grants, query.get("ResourceArn")) for query in queries) if queries else NO
    if operation == "Search":
        return _of_search(grants, params)
    return _of_listing(grants, operation, params)


def _of_values(grants: Grants, arn: Any) -> Decision:
    """Decide on the values of a record, or of a training job: the job's own alone."""
    kind, _, name = arn.rpartition(":")[2].partition("/") if isinstance(arn, str) else ("", "", "")
    if kind == JOB:
        return Decision(name == grants.job_name)  # names of jobs may differ in case alone
    return _by_arn(grants, arn)


def _of_listing(grants: Grants, operation: str, params: Params) -> Decision:
    """Decide on a list: allowed only if it is limited to a record of the job."""
    if operation == "ListAssociations":
        narrowed = [_by_arn(grants, params[name]) for name in ("SourceArn", "DestinationArn") if name in params]
        return all_of(narrowed) if narrowed else NO
    if operation == "ListTrialComponents":
        return Decision(params.get("SourceArn") == grants.job_arn)
    named = [member for member in ("ExperimentName", "TrialComponentName") if member in params]
    return all_of(_named(grants, _MEMBERS[member], params[member]) for member in named) if named else NO


def _of_search(grants: Grants, params: Params) -> Decision:
    """Decide on a search: allowed only for components, with a filter on the name of one of the job's own components."""
    expression = params.get("SearchExpression") or {}
    if params.get("Resource") != "ExperimentTrialComponent" or expression.get("Operator", "And") != "And":
        return NO
    for item in expression.get("Filters") or ():
        if item.get("Name") == "TrialComponentName" and item.get("Operator", "Equals") == "Equals":
            return _named(grants, COMPONENT, item.get("Value"))
    return NO


def _named(grants: Grants, kind: str, name: Any) -> Decision:
    """Decide on a record by its name, or by the ARN given in place of the name."""
    if not isinstance(name, str) or not name:
        return NO
    if name.lower().startswith("arn:"):
        return _by_arn(grants, name, kind=kind)
    own = {EXPERIMENT: grants.experiments, TRIAL: grants.trials, COMPONENT: grants.components}.get(kind, frozenset())
    if name.lower() in own:
        return ALLOWED
    if "/" in name or name.lower().endswith(_OF_JOBS):
        return NO
    return Decision(True, if_made=((kind, name),))


def _by_arn(grants: Grants, arn: Any, *, kind: str | None = None) -> Decision:
    """Decide on a record by its ARN; handlers use the name in it and ignore its region."""
    if not isinstance(arn, str):
        return NO
    its_kind, slash, name = arn.rpartition(":")[2].partition("/")
    if not slash or its_kind not in (EXPERIMENT, TRIAL, COMPONENT, ARTIFACT) or (kind or its_kind) != its_kind:
        return NO
    return _named(grants, its_kind, name) if not name.lower().startswith("arn:") else NO
