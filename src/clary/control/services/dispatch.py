"""The one list of operations that the service answers.

Where: `server.aws_handler` looks up the parsed operation here. An unlisted operation of a known model gets an empty
list if it lists records that the service lacks; otherwise it is refused by name, so that a client learns at once that
it is not supported.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from clary.base.errors import NOTHING_CHANGED, Fault, ObjectStoreError, StoreError, WireError
from clary.control import effects
from clary.control.services import (
    custom_metrics,
    ecr,
    iam,
    iam_changes,
    iam_policies,
    log_queries,
    logs,
    metric_data,
    metric_lists,
    metrics,
    sts,
    tags,
)
from clary.control.services.call import Call, Handler
from clary.control.services.experiments import (
    component_calls,
    experiment_calls,
    lineage_calls,
    search_calls,
    trial_calls,
    value_calls,
)
from clary.control.services.sagemaker import job_lists, training_jobs
from clary.control.services.tuning import tuning_calls
from clary.control.store.damage import JobUnreadable
from clary.control.store.errors import JobNotFound
from clary.control.wire.empty_answers import empty_listing
from clary.control.wire.routing import OFFERED

HANDLERS: Mapping[tuple[str, str], Handler] = {
    ("sagemaker", "CreateTrainingJob"): training_jobs.create_training_job,
    ("sagemaker", "DescribeTrainingJob"): training_jobs.describe_training_job,
    ("sagemaker", "StopTrainingJob"): training_jobs.stop_training_job,
    ("sagemaker", "UpdateTrainingJob"): training_jobs.update_training_job,
    ("sagemaker", "DeleteTrainingJob"): training_jobs.delete_training_job,
    ("sagemaker", "ListTrainingJobs"): job_lists.list_training_jobs,
    ("sagemaker", "CreateHyperParameterTuningJob"): tuning_calls.create_tuning_job,
    ("sagemaker", "DescribeHyperParameterTuningJob"): tuning_calls.describe,
    ("sagemaker", "ListHyperParameterTuningJobs"): tuning_calls.list_tuning_jobs,
    ("sagemaker", "ListTrainingJobsForHyperParameterTuningJob"): tuning_calls.list_training_jobs_of,
    ("sagemaker", "StopHyperParameterTuningJob"): tuning_calls.stop_tuning_job,
    ("sagemaker", "DeleteHyperParameterTuningJob"): tuning_calls.delete_tuning_job,
    ("sagemaker", "AddTags"): tags.add_tags,
    ("sagemaker", "ListTags"): tags.list_tags,
    ("sagemaker", "DeleteTags"): tags.delete_tags,
    ("logs", "DescribeLogGroups"): logs.describe_log_groups,
    ("logs", "DescribeLogStreams"): logs.describe_log_streams,
    ("logs", "GetLogEvents"): logs.get_log_events,
    ("logs", "FilterLogEvents"): logs.filter_log_events,
    ("logs", "PutRetentionPolicy"): logs.put_retention_policy,
    ("logs", "DeleteRetentionPolicy"): logs.delete_retention_policy,
    ("logs", "StartQuery"): log_queries.start_query,
    ("logs", "GetQueryResults"): log_queries.get_query_results,
    ("logs", "StopQuery"): log_queries.stop_query,
    ("logs", "DescribeQueries"): log_queries.describe_queries,
    ("sts", "GetCallerIdentity"): sts.get_caller_identity,
    ("sts", "AssumeRole"): sts.assume_role,
    ("sts", "GetSessionToken"): sts.get_session_token,
    ("iam", "CreateRole"): iam.create_role,
    ("iam", "GetRole"): iam.get_role,
    ("iam", "GetUser"): iam.get_user,
    ("iam", "ListRoles"): iam.list_roles,
    ("iam", "ListAttachedRolePolicies"): iam_policies.list_attached_role_policies,
    ("iam", "SimulatePrincipalPolicy"): iam_policies.simulate_principal_policy,
    ("iam", "CreatePolicy"): iam_policies.create_policy,
    ("iam", "CreatePolicyVersion"): iam_policies.create_policy_version,
    ("iam", "GetPolicy"): iam_policies.get_policy,
    ("iam", "GetPolicyVersion"): iam_policies.get_policy_version,
    ("iam", "ListPolicyVersions"): iam_policies.list_policy_versions,
    ("iam", "GetRolePolicy"): iam.get_role_policy,
    ("iam", "AttachRolePolicy"): iam_changes.without_effect("AttachRolePolicy"),
    ("iam", "DetachRolePolicy"): iam_changes.without_effect("DetachRolePolicy"),
    ("iam", "PutRolePolicy"): iam_changes.without_effect("PutRolePolicy"),
    ("iam", "DeleteRolePolicy"): iam_changes.without_effect("DeleteRolePolicy"),
    ("iam", "TagRole"): iam_changes.without_effect("TagRole"),
    ("iam", "UntagRole"): iam_changes.without_effect("UntagRole"),
    ("iam", "UpdateAssumeRolePolicy"): iam_changes.without_effect("UpdateAssumeRolePolicy"),
    ("iam", "UpdateRole"): iam_changes.without_effect("UpdateRole"),
    ("iam", "DeleteRole"): iam_changes.without_effect("DeleteRole"),
    ("iam", "DeletePolicy"): iam_changes.without_effect("DeletePolicy"),
    ("iam", "DeletePolicyVersion"): iam_changes.without_effect("DeletePolicyVersion"),
    ("iam", "SetDefaultPolicyVersion"): iam_changes.without_effect("SetDefaultPolicyVersion"),
    ("iam", "TagPolicy"): iam_changes.without_effect("TagPolicy"),
    ("iam", "UntagPolicy"): iam_changes.without_effect("UntagPolicy"),
    ("ecr", "GetAuthorizationToken"): ecr.get_authorization_token,
    ("cloudwatch", "GetMetricStatistics"): metrics.get_metric_statistics,
    ("cloudwatch", "GetMetricData"): metric_data.get_metric_data,
    ("cloudwatch", "ListMetrics"): metric_lists.list_metrics,
    ("cloudwatch", "PutMetricData"): custom_metrics.put_metric_data,
    ("sagemaker-metrics", "BatchPutMetrics"): value_calls.batch_put_metrics,
    ("sagemaker-metrics", "BatchGetMetrics"): value_calls.batch_get_metrics,
    ("sagemaker", "CreateExperiment"): experiment_calls.create_experiment,
    ("sagemaker", "DescribeExperiment"): experiment_calls.describe_experiment,
    ("sagemaker", "UpdateExperiment"): experiment_calls.update_experiment,
    ("sagemaker", "DeleteExperiment"): experiment_calls.delete_experiment,
    ("sagemaker", "ListExperiments"): experiment_calls.list_experiments,
    ("sagemaker", "CreateTrial"): trial_calls.create_trial,
    ("sagemaker", "DescribeTrial"): trial_calls.describe_trial,
    ("sagemaker", "UpdateTrial"): trial_calls.update_trial,
    ("sagemaker", "DeleteTrial"): trial_calls.delete_trial,
    ("sagemaker", "ListTrials"): trial_calls.list_trials,
    ("sagemaker", "AssociateTrialComponent"): trial_calls.associate_trial_component,
    ("sagemaker", "DisassociateTrialComponent"): trial_calls.disassociate_trial_component,
    ("sagemaker", "CreateTrialComponent"): component_calls.create_trial_component,
    ("sagemaker", "DescribeTrialComponent"): component_calls.describe_trial_component,
    ("sagemaker", "UpdateTrialComponent"): component_calls.update_trial_component,
    ("sagemaker", "DeleteTrialComponent"): component_calls.delete_trial_component,
    ("sagemaker", "ListTrialComponents"): component_calls.list_trial_components,
    ("sagemaker", "CreateArtifact"): lineage_calls.create_artifact,
    ("sagemaker", "DescribeArtifact"): lineage_calls.describe_artifact,
    ("sagemaker", "UpdateArtifact"): lineage_calls.update_artifact,
    ("sagemaker", "DeleteArtifact"): lineage_calls.delete_artifact,
    ("sagemaker", "ListArtifacts"): lineage_calls.list_artifacts,
    ("sagemaker", "AddAssociation"): lineage_calls.add_association,
    ("sagemaker", "DeleteAssociation"): lineage_calls.delete_association,
    ("sagemaker", "ListAssociations"): lineage_calls.list_associations,
    ("sagemaker", "Search"): search_calls.search,
}

# Services whose handlers cover all kinds of existing records, so that lists of other kinds are empty.
LISTED_EMPTY = frozenset({"sagemaker", "iam", "cloudwatch"})
# members that are accepted with any value, because every role and every policy exists
ALWAYS_THERE = ("RoleName", "PolicyArn")
# RuleEvaluationJobArn has the form of a processing job's ARN, and scripts ask for the job that it seems to name.
_OF_RULES = (
    ". What a rule of Debugger has found is told by DescribeTrainingJob, in DebugRuleEvaluationStatuses and "
    "ProfilerRuleEvaluationStatuses"
)
# Handlers of Python's logging, such as watchtower's, create a group and a stream before they write.
_OF_LOG_LINES = (
    ": nobody writes to logs by request. Print the lines, or give them to a logging.StreamHandler: what a job's "
    "processes print is in log group /aws/sagemaker/TrainingJobs"
)
_INSTEAD: Mapping[tuple[str, str], str] = {
    ("sagemaker", "DescribeProcessingJob"): _OF_RULES,
    ("sagemaker", "StopProcessingJob"): _OF_RULES,
    ("logs", "CreateLogGroup"): _OF_LOG_LINES,
    ("logs", "CreateLogStream"): _OF_LOG_LINES,
    ("logs", "PutLogEvents"): _OF_LOG_LINES,
}


async def dispatch(service: str, operation: str, call: Call) -> Mapping[str, Any]:
    """Run the handler of an operation, or return an empty list for kinds of records that are not supported.

    Args:
        service: name of the service's model, such as `sagemaker`.
        operation: such as `CreateTrainingJob`.
        call: authenticated, parsed and validated.
    Raises: WireError: UnknownOperationException for an unsupported operation; errors of the handler.
    """
    handler = HANDLERS.get((service, operation))
    if handler is None:
        is_listed = service in LISTED_EMPTY
        nothing = empty_listing(service, operation, always_there=ALWAYS_THERE) if is_listed else None
        if nothing is not None:
            return nothing
        instead = f": it offers {OFFERED[service]}" if service in OFFERED else ""
        instead += _INSTEAD.get((service, operation), "")
        raise WireError(
            "UnknownOperationException", f"{service}:{operation} is not supported by this service{instead}."
        )
    try:
        with effects.watched() as made:
            return await handler(call)
    except JobUnreadable as error:
        raise WireError("ValidationException", error.message) from error
    except JobNotFound as error:
        # Another call has deleted the job during this call, which is answered as if it had arrived later.
        raise WireError("ValidationException", training_jobs.NOT_FOUND) from error
    except ObjectStoreError as error:
        raise _unavailable(error, made) from error
    except StoreError as error:
        if error.fault is not Fault.INFRASTRUCTURE:
            raise
        # A full disk, or an unavailable database: the client receives the reason, and retries.
        raise _unavailable(error, made) from error


def _unavailable(error: ObjectStoreError | StoreError, made: effects.Effects) -> WireError:
    told = WireError("ServiceUnavailable", error.message, http_status=HTTPStatus.SERVICE_UNAVAILABLE)
    told.details.update(error.details)
    if made.are_any:
        told.details.pop(NOTHING_CHANGED, None)  # true of what failed, but not of the whole request
    return told
