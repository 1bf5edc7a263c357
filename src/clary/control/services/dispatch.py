"""The one list of operations that the service answers.

Where: `server.aws_handler` looks the parsed operation up here; an operation of a known model that is not listed is
refused by name, so that a client learns at once what it cannot have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clary.contract.errors import WireError
from clary.control.services import iam, logs, metric_data, metrics, sts
from clary.control.services.call import Call, Handler
from clary.control.services.sagemaker import job_lists, tags, training_jobs
from clary.control.store.errors import JobNotFound

HANDLERS: Mapping[tuple[str, str], Handler] = {
    ("sagemaker", "CreateTrainingJob"): training_jobs.create_training_job,
    ("sagemaker", "DescribeTrainingJob"): training_jobs.describe_training_job,
    ("sagemaker", "StopTrainingJob"): training_jobs.stop_training_job,
    ("sagemaker", "UpdateTrainingJob"): training_jobs.update_training_job,
    ("sagemaker", "DeleteTrainingJob"): training_jobs.delete_training_job,
    ("sagemaker", "ListTrainingJobs"): job_lists.list_training_jobs,
    ("sagemaker", "AddTags"): tags.add_tags,
    ("sagemaker", "ListTags"): tags.list_tags,
    ("sagemaker", "DeleteTags"): tags.delete_tags,
    ("logs", "DescribeLogGroups"): logs.describe_log_groups,
    ("logs", "DescribeLogStreams"): logs.describe_log_streams,
    ("logs", "GetLogEvents"): logs.get_log_events,
    ("logs", "FilterLogEvents"): logs.filter_log_events,
    ("logs", "PutRetentionPolicy"): logs.put_retention_policy,
    ("logs", "DeleteRetentionPolicy"): logs.delete_retention_policy,
    ("sts", "GetCallerIdentity"): sts.get_caller_identity,
    ("iam", "GetRole"): iam.get_role,
    ("iam", "GetUser"): iam.get_user,
    ("iam", "ListAttachedRolePolicies"): iam.list_attached_role_policies,
    ("iam", "SimulatePrincipalPolicy"): iam.simulate_principal_policy,
    ("cloudwatch", "GetMetricStatistics"): metrics.get_metric_statistics,
    ("cloudwatch", "GetMetricData"): metric_data.get_metric_data,
    ("cloudwatch", "ListMetrics"): metrics.list_metrics,
    ("sagemaker-metrics", "BatchPutMetrics"): metrics.batch_put_metrics,
}


async def dispatch(service: str, operation: str, call: Call) -> Mapping[str, Any]:
    """Run the handler of an operation.

    Raises: WireError: UnknownOperationException for an operation that is not answered here, else the handler's own.
    """
    handler = HANDLERS.get((service, operation))
    if handler is None:
        raise WireError("UnknownOperationException", f"{service}:{operation} is not supported by this service.")
    try:
        return await handler(call)
    except JobNotFound as error:
        # Deleted by another call while this one was under way: as if it had come a moment later.
        raise WireError("ValidationException", training_jobs.NOT_FOUND) from error
