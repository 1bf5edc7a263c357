"""Operations of AWS's JSON and query APIs that the key of a job may call: a table of all permissions.

Where: `server.aws_handler` calls `decide` for each verified, parsed and validated request, before the request's
handler, if a job's key signed it. `tracking_rules` decides on operations of experiments. Other operations outside of
the table are refused, so a new operation is refused until it has a row here. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from clary.control.permissions import tracking_rules
from clary.control.permissions.grants import ALLOWED, Decision, Grants, Refused

PLATFORM_NAMESPACE = "/aws/sagemaker/TrainingJobs"

Params = Mapping[str, Any]
Rule = Callable[[Grants, Params], bool]


def _always(grants: Grants, params: Params) -> bool:
    del grants, params
    return True


def _own_job(grants: Grants, params: Params) -> bool:
    return bool(params.get("TrainingJobName") == grants.job_name)


def _own_arn(grants: Grants, params: Params) -> bool:
    return bool(params.get("ResourceArn") == grants.job_arn)


def own_streams(grants: Grants) -> str:
    """Return the prefix of the names of this job's log streams, which no other stream has."""
    return f"{grants.job_name}/"


def _own_stream(grants: Grants, params: Params) -> bool:
    return str(params.get("logStreamName", "")).startswith(own_streams(grants))


def _own_streams(grants: Grants, params: Params) -> bool:
    own = own_streams(grants)
    names = params.get("logStreamNames") or ()
    if names:
        return all(str(name).startswith(own) for name in names) and "logStreamNamePrefix" not in params
    return str(params.get("logStreamNamePrefix", "")).startswith(own)


def _own_metric(grants: Grants, metric: Params) -> bool:
    """Whether a metric is the job's own: its dimensions name only the job or its hosts.

    Metrics outside of the platform's namespace are scripts' own metrics; such a metric must not name another job.
    """
    dimensions = metric.get("Dimensions") or ()
    if metric.get("Namespace", PLATFORM_NAMESPACE) != PLATFORM_NAMESPACE:
        return _is_own_data(grants, metric)
    return bool(dimensions) and all(
        (item.get("Name"), item.get("Value")) == ("TrainingJobName", grants.job_name)
        or (item.get("Name") == "Host" and str(item.get("Value", "")).startswith(f"{grants.job_name}/"))
        for item in dimensions
    )


def _is_own_data(grants: Grants, metric: Params) -> bool:
    """Whether the dimensions of a script's own metric name no other job than the caller's."""
    return all(
        item.get("Name") != "TrainingJobName" or item.get("Value") == grants.job_name
        for item in metric.get("Dimensions") or ()
    )


def _own_data(grants: Grants, params: Params) -> bool:
    return all(_is_own_data(grants, datum) for datum in params.get("MetricData") or ())


def _own_metrics(grants: Grants, params: Params) -> bool:
    queries = params.get("MetricDataQueries") or ()
    return bool(queries) and all(
        not query.get("MetricStat") or _own_metric(grants, query["MetricStat"].get("Metric") or {}) for query in queries
    )


RULES: Mapping[tuple[str, str], Rule] = {
    ("sagemaker", "DescribeTrainingJob"): _own_job,
    ("sagemaker", "StopTrainingJob"): _own_job,
    ("logs", "DescribeLogGroups"): _always,  # there is one group, and its name is no secret
    ("logs", "DescribeLogStreams"): _own_streams,
    ("logs", "GetLogEvents"): _own_stream,
    ("logs", "FilterLogEvents"): _own_streams,
    # A job's queries read only `own_streams`, and a job sees only its own queries: `services.log_queries`.
    ("logs", "StartQuery"): _always,
    ("logs", "GetQueryResults"): _always,
    ("logs", "StopQuery"): _always,
    ("logs", "DescribeQueries"): _always,
    ("sts", "GetCallerIdentity"): _always,
    ("iam", "CreateRole"): _always,  # it is refused for every name
    ("iam", "GetRole"): _always,  # these operations return the same answer for every name
    ("iam", "GetUser"): _always,
    ("iam", "ListAttachedRolePolicies"): _always,
    ("iam", "ListRoles"): _always,
    ("ecr", "GetAuthorizationToken"): _always,  # the token that it returns permits nothing
    ("cloudwatch", "GetMetricStatistics"): _own_metric,
    ("cloudwatch", "GetMetricData"): _own_metrics,
    ("cloudwatch", "ListMetrics"): _own_metric,
    ("cloudwatch", "PutMetricData"): _own_data,
}


def decide(grants: Grants, service: str, operation: str, params: Params) -> Decision:
    """Decide whether a call is allowed.

    Args:
        grants: grants of the job's key.
        service: its name in the model, such as `sagemaker`.
        operation: such as `DescribeTrainingJob`.
        params: parsed and validated members of the request.
    """
    if (service, operation) in (("sagemaker", "ListTags"), *tracking_rules.OPERATIONS):
        if operation == "ListTags" and _own_arn(grants, params):
            return ALLOWED
        decision = tracking_rules.decide(grants, operation, params)
    else:
        rule = RULES.get((service, operation))
        decision = Decision(rule is not None and rule(grants, params))
    if decision.is_allowed:
        return decision
    return refused(grants, service, operation, params)


def refused(grants: Grants, service: str, operation: str, params: Params) -> Decision:
    """Return the refusal of a call.

    Args: as `decide`.
    """
    return Refused(grants, f"{service}:{operation}", _resource(params), _expected(service)).decision()


def _expected(service: str) -> str:
    if service == "logs":
        return "the log streams of its own job, by their names or a prefix that is the job's name and a slash"
    return (
        "its own job, the experiment, trial and run that its ExperimentConfig names, and what it has made of these "
        "itself"
    )


def _resource(params: Params) -> str:
    """Return the resource of a call, for people: its first member that names a resource."""
    for name, value in params.items():
        if isinstance(value, str) and name.endswith(("Name", "Arn", "Prefix")):
            return value
    return "*"
