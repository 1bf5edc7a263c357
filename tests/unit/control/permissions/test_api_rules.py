"""Calls that a job's key may make: every operation of the service, on the job itself and on other resources."""

import pytest
from job_key import ARN, GRANTS, REQUEST, job_of

from clary.control.jobs.job_grants import grants_of
from clary.control.permissions.api_rules import RULES, decide
from clary.control.permissions.tracking_rules import OPERATIONS
from clary.control.services.dispatch import HANDLERS

IAM_CHANGES = (
    *("AttachRolePolicy", "DetachRolePolicy", "PutRolePolicy", "DeleteRolePolicy", "TagRole", "UntagRole"),
    *("UpdateAssumeRolePolicy", "UpdateRole", "DeleteRole", "CreatePolicy", "CreatePolicyVersion", "DeletePolicy"),
    *("DeletePolicyVersion", "SetDefaultPolicyVersion", "TagPolicy", "UntagPolicy"),
)
OWN = {"TrainingJobName": "job-1"}
OWN_METRIC = {"Dimensions": [{"Name": "TrainingJobName", "Value": "job-1"}]}
OTHERS_METRIC = {"Dimensions": [{"Name": "TrainingJobName", "Value": "job-2"}]}
HOST = {"Dimensions": [{"Name": "Host", "Value": "job-1/algo-1"}]}
COMPONENTS = ("digits-run", "Digits-Run", "job-1-aws-training-job")
ALLOWED = [
    ("sagemaker", "DescribeTrainingJob", OWN),
    ("sagemaker", "StopTrainingJob", OWN),
    ("sagemaker", "ListTags", {"ResourceArn": f"{ARN}:training-job/job-1"}),
    ("sts", "GetCallerIdentity", {}),
    ("iam", "GetRole", {"RoleName": "R"}),
    ("logs", "DescribeLogGroups", {}),
    ("logs", "DescribeLogStreams", {"logStreamNamePrefix": "job-1/"}),
    ("logs", "GetLogEvents", {"logStreamName": "job-1/algo-1-1"}),
    ("logs", "FilterLogEvents", {"logStreamNamePrefix": "job-1/algo"}),
    ("logs", "FilterLogEvents", {"logStreamNames": ["job-1/algo-1-1"]}),
    ("cloudwatch", "GetMetricStatistics", {"Dimensions": [{"Name": "TrainingJobName", "Value": "job-1"}]}),
    ("cloudwatch", "GetMetricStatistics", HOST),
    ("cloudwatch", "ListMetrics", HOST),
    ("cloudwatch", "GetMetricData", {"MetricDataQueries": [{"MetricStat": {"Metric": HOST}}]}),
    (
        "cloudwatch",
        "PutMetricData",
        {"Namespace": "x", "MetricData": [{"MetricName": "a"}, {"MetricName": "b", **OWN_METRIC}]},
    ),
    ("cloudwatch", "GetMetricStatistics", {"Namespace": "x", "MetricName": "a"}),
    ("sagemaker", "DescribeExperiment", {"ExperimentName": "digits"}),
    ("sagemaker", "CreateTrial", {"ExperimentName": "Digits", "TrialName": "Default-Run-Group-Digits"}),
    ("sagemaker", "ListTrials", {"ExperimentName": "Digits"}),
    *(
        case
        for name in COMPONENTS
        for case in (
            ("sagemaker", "DescribeTrialComponent", {"TrialComponentName": name}),
            ("sagemaker", "UpdateTrialComponent", {"TrialComponentName": name}),
            ("sagemaker-metrics", "BatchPutMetrics", {"TrialComponentName": name}),
            (
                "sagemaker",
                "AssociateTrialComponent",
                {"TrialComponentName": name, "TrialName": "default-run-group-digits"},
            ),
            (
                "sagemaker",
                "Search",
                {
                    "Resource": "ExperimentTrialComponent",
                    "SearchExpression": {
                        "Filters": [
                            {"Name": "TrialComponentName", "Operator": "Equals", "Value": name},
                            {"Name": "Parents.TrialName", "Operator": "Equals", "Value": "any"},
                        ]
                    },
                },
            ),
            (
                "sagemaker-metrics",
                "BatchGetMetrics",
                {"MetricQueries": [{"ResourceArn": f"{ARN}:experiment-trial-component/{name}"}]},
            ),
        )
    ),
    ("sagemaker", "ListTrialComponents", {"SourceArn": f"{ARN}:training-job/job-1"}),
    ("sagemaker-metrics", "BatchGetMetrics", {"MetricQueries": [{"ResourceArn": f"{ARN}:training-job/job-1"}]}),
]
REFUSED = [
    *(
        ("sagemaker-metrics", "BatchGetMetrics", {"MetricQueries": [{"ResourceArn": f"{ARN}:training-job/{name}"}]})
        for name in ("job-2", "JOB-1", "")
    ),
    (
        "cloudwatch",
        "PutMetricData",
        {"Namespace": "x", "MetricData": [{"MetricName": "a"}, {"MetricName": "b", **OTHERS_METRIC}]},
    ),
    ("cloudwatch", "GetMetricStatistics", {"Namespace": "x", **OTHERS_METRIC}),
    ("cloudwatch", "GetMetricStatistics", {"MetricName": "a"}),
    ("sagemaker", "CreateTrainingJob", OWN),
    ("sagemaker", "CreateTrainingJob", {"TrainingJobName": "job-2"}),
    ("sagemaker", "UpdateTrainingJob", OWN),
    ("sagemaker", "DeleteTrainingJob", OWN),
    ("sagemaker", "DescribeTrainingJob", {"TrainingJobName": "job-2"}),
    ("sagemaker", "DescribeTrainingJob", {"TrainingJobName": "Job-1"}),
    ("sagemaker", "StopTrainingJob", {"TrainingJobName": "job-10"}),
    ("sagemaker", "ListTrainingJobs", {}),
    ("sagemaker", "ListTrainingJobs", {"NameContains": "job-1"}),
    ("sagemaker", "ListTags", {"ResourceArn": f"{ARN}:training-job/job-2"}),
    ("sagemaker", "AddTags", {"ResourceArn": f"{ARN}:training-job/job-1"}),
    ("sagemaker", "AddTags", {"ResourceArn": f"{ARN}:experiment-trial-component/digits-run"}),
    ("sagemaker", "DeleteTags", {"ResourceArn": f"{ARN}:training-job/job-1"}),
    ("sagemaker", "CreateProcessingJob", {}),
    ("iam", "SimulatePrincipalPolicy", {}),
    *(("iam", name, {"RoleName": "R"}) for name in (*IAM_CHANGES, "GetPolicy", "ListRoleTags", "ListRolePolicies")),
    ("logs", "DescribeLogStreams", {}),
    ("logs", "DescribeLogStreams", {"logStreamNamePrefix": "job-1"}),
    ("logs", "DescribeLogStreams", {"logStreamNamePrefix": "job-10/"}),
    ("logs", "GetLogEvents", {"logStreamName": "job-10/algo-1-1"}),
    ("logs", "FilterLogEvents", {}),
    ("logs", "FilterLogEvents", {"logStreamNames": ["job-1/a", "job-2/a"]}),
    ("logs", "FilterLogEvents", {"logStreamNames": ["job-1/a"], "logStreamNamePrefix": "job-2/"}),
    ("logs", "PutRetentionPolicy", {"retentionInDays": 1}),
    ("logs", "DeleteRetentionPolicy", {}),
    ("cloudwatch", "GetMetricStatistics", {}),
    ("cloudwatch", "GetMetricStatistics", {"Dimensions": [{"Name": "Host", "Value": "job-10/algo-1"}]}),
    (
        "cloudwatch",
        "GetMetricStatistics",
        {"Dimensions": [*HOST["Dimensions"], {"Name": "TrainingJobName", "Value": "job-2"}]},
    ),
    ("cloudwatch", "ListMetrics", {}),
    ("cloudwatch", "GetMetricData", {"MetricDataQueries": []}),
    (
        "cloudwatch",
        "GetMetricData",
        {"MetricDataQueries": [{"MetricStat": {"Metric": HOST}}, {"MetricStat": {"Metric": {}}}]},
    ),
    ("sagemaker", "DescribeTrialComponent", {"TrialComponentName": "job-2-aws-training-job"}),
    ("sagemaker", "CreateTrialComponent", {"TrialComponentName": "job-2-aws-training-job"}),
    (
        "sagemaker",
        "DescribeTrialComponent",
        {"TrialComponentName": f"{ARN}:experiment-trial-component/x/job-2-aws-training-job"},
    ),
    (
        "sagemaker",
        "DescribeTrialComponent",
        {"TrialComponentName": f"{ARN}:experiment/job-2-aws-training-job"},
    ),
    ("sagemaker-metrics", "BatchPutMetrics", {"TrialComponentName": "job-2-aws-training-job"}),
    ("sagemaker-metrics", "BatchGetMetrics", {"MetricQueries": []}),
    (
        "sagemaker-metrics",
        "BatchGetMetrics",
        {"MetricQueries": [{"ResourceArn": f"{ARN}:experiment-trial-component/job-2-aws-training-job"}]},
    ),
    ("sagemaker", "ListExperiments", {}),
    ("sagemaker", "ListTrials", {}),
    ("sagemaker", "ListTrialComponents", {}),
    ("sagemaker", "ListTrialComponents", {"ExperimentName": "Digits"}),
    ("sagemaker", "ListTrialComponents", {"SourceArn": f"{ARN}:training-job/job-2"}),
    ("sagemaker", "ListArtifacts", {}),
    ("sagemaker", "ListAssociations", {}),
    ("sagemaker", "DeleteArtifact", {}),
    ("sagemaker", "DeleteExperiment", {"ExperimentName": "Digits"}),
    ("sagemaker", "DeleteTrial", {"TrialName": "default-run-group-digits"}),
    ("sagemaker", "DeleteTrialComponent", {"TrialComponentName": "digits-run"}),
    ("sagemaker", "Search", {"Resource": "TrainingJob"}),
    ("sagemaker", "Search", {"Resource": "ExperimentTrialComponent"}),
    *(
        (
            "sagemaker",
            "Search",
            {"Resource": "ExperimentTrialComponent", "SearchExpression": expression},
        )
        for expression in (
            {"Filters": [{"Name": "TrialComponentName", "Operator": "Contains", "Value": "digits-run"}]},
            {"Filters": [{"Name": "TrialComponentName", "Operator": "NotEquals", "Value": "digits-run"}]},
            {"Filters": [{"Name": "Parents.ExperimentName", "Operator": "Equals", "Value": "Digits"}]},
            {"Filters": [{"Name": "TrialComponentName", "Value": "digits-run"}], "Operator": "Or"},
        )
    ),
]
IF_MADE = [
    ("sagemaker", "CreateExperiment", {"ExperimentName": "New"}, (("experiment", "New"),)),
    ("sagemaker", "DescribeExperiment", {"ExperimentName": "Other"}, (("experiment", "Other"),)),
    (
        "sagemaker",
        "AssociateTrialComponent",
        {"TrialName": "t", "TrialComponentName": "c"},
        (("experiment-trial", "t"), ("experiment-trial-component", "c")),
    ),
    (
        "sagemaker",
        "AddAssociation",
        {"SourceArn": f"{ARN}:artifact/a", "DestinationArn": f"{ARN}:experiment-trial-component/digits-run"},
        (("artifact", "a"),),
    ),
    ("sagemaker", "UpdateArtifact", {"ArtifactArn": "arn:aws:sagemaker:eu-west-1:1:artifact/a"}, (("artifact", "a"),)),
]


@pytest.mark.parametrize(("service", "operation", "params"), ALLOWED)
def test_a_job_may_read_and_change_itself(service, operation, params):
    decision = decide(GRANTS, service, operation, params)
    assert decision.is_allowed, decision.reason
    assert not decision.if_made


@pytest.mark.parametrize(("service", "operation", "params"), REFUSED)
def test_every_other_call_of_a_job_is_refused_with_the_reason(service, operation, params):
    decision = decide(GRANTS, service, operation, params)
    assert not decision.is_allowed
    assert not decision.if_made
    for word in ("job job-1", f"{service}:{operation}", "its own job", 'job_api_access = "full"'):
        assert word in decision.reason


@pytest.mark.parametrize(("service", "operation", "params", "if_made"), IF_MADE)
def test_a_resource_that_a_job_creates_belongs_to_the_job(service, operation, params, if_made):
    decision = decide(GRANTS, service, operation, params)
    assert decision.is_allowed
    assert decision.if_made == if_made


def test_every_operation_of_the_service_has_a_rule_or_is_listed_as_reserved():
    """A new operation is refused until it is in a table, or is listed here as reserved for the owner."""
    owners_alone = {
        ("sagemaker", name)
        for name in (
            *("CreateTrainingJob", "UpdateTrainingJob", "DeleteTrainingJob", "ListTrainingJobs"),
            *("AddTags", "DeleteTags", "ListExperiments", "ListArtifacts"),
            *("DeleteExperiment", "DeleteTrial", "DeleteTrialComponent", "DeleteArtifact"),
        )
    } | {("logs", "PutRetentionPolicy"), ("logs", "DeleteRetentionPolicy"), ("iam", "SimulatePrincipalPolicy")}
    owners_alone |= {("sts", "AssumeRole"), ("sts", "GetSessionToken")}
    tuning = ("CreateHyper", "DescribeHyper", "StopHyper", "DeleteHyper", "ListTrainingJobsForHyper")
    owners_alone |= {("sagemaker", f"{word}ParameterTuningJob") for word in tuning}
    owners_alone |= {("sagemaker", "ListHyperParameterTuningJobs")}
    policy_reads = ("GetPolicy", "GetPolicyVersion", "GetRolePolicy", "ListPolicyVersions")
    owners_alone |= {("iam", name) for name in (*policy_reads, *IAM_CHANGES)}
    assert set(HANDLERS) - set(RULES) - OPERATIONS - {("sagemaker", "ListTags")} == owners_alone


def test_a_function_that_is_submitted_within_a_run_may_log_to_that_run():
    arguments = ["--region", "us-west-2", "--run_in_context", '{"experiment_name": "Digits", "run_name": "only"}']
    algorithm = {**REQUEST["AlgorithmSpecification"], "ContainerArguments": arguments}
    request = {**REQUEST, "AlgorithmSpecification": algorithm, "ExperimentConfig": {}}
    grants = grants_of(job_of(request), default_bucket="clary")
    assert grants.experiments == {"digits"}
    assert "digits-only" in grants.components
    assert "default-run-group-digits" in grants.trials
    broken = {**request, "AlgorithmSpecification": {**algorithm, "ContainerArguments": ["--run_in_context", "{"]}}
    assert grants_of(job_of(broken), default_bucket="clary").experiments == frozenset()
