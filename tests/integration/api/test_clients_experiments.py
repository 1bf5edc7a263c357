"""Experiments by clients: Run of both SDKs, load_run inside a job, list_runs, and every operation by boto3."""

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from running_service import SDK2_PYTHON, SDK3_PYTHON

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600), pytest.mark.xdist_group("clients-experiments")]

SCRIPT = "v2_experiments.py"


@pytest.fixture(scope="module", autouse=True)
def _all_started(client_runs):
    client_runs.start(SDK2_PYTHON, SCRIPT)


@pytest.fixture(scope="module")
def client(service):
    def make(name):
        return boto3.client(
            name,
            endpoint_url=service.environment["AWS_ENDPOINT_URL"],
            region_name=service.environment["AWS_REGION"],
            aws_access_key_id=service.environment["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=service.environment["AWS_SECRET_ACCESS_KEY"],
            config=Config(retries={"max_attempts": 2}, connect_timeout=5, read_timeout=60),
        )

    return make


@pytest.mark.long(25)
def test_v2_run_logs_from_outside_and_from_inside_its_job(client_runs):
    output, facts = client_runs.result(SCRIPT)
    assert sorted(facts["runs"]) == ["first", "second"], "the component of the job is no run"
    parameters = facts["parameters"]
    assert parameters["lr"] == {"NumberValue": 0.1}
    assert parameters["opt"] == {"StringValue": "adam"}
    assert parameters["from-job"] == {"StringValue": "yes"}, output[-3000:]
    assert facts["metrics"]["loss"] == [12, pytest.approx(1 / 12), 1.0, pytest.approx(1 / 12)]
    assert facts["metrics"]["job-loss"] == [3, 1.0, 3.0, 1.0]
    assert facts["values"] == [[0, 1, 2], [3.0, 2.0, 1.0]]
    assert (facts["outputs"], facts["inputs"]) == (["notes"], ["weights"])
    assert facts["edges"] == ["Produced"]
    assert (facts["status"], facts["job_status"]) == ("Completed", "Completed")
    assert facts["job_parameters"]["depth"] == {"NumberValue": 4.0}
    assert facts["rows"][0] == "digits-second", "sorted by the least loss, greatest first"
    assert sorted(facts["rows"]) == ["Digits-Job-1-aws-training-job", "digits-first", "digits-second"]
    assert {"lr", "loss - StdDev", "loss - Count", "notes - Value", "Trials"} <= set(facts["columns"])


def test_every_operation_returns_the_output_shape_of_its_model(client):
    sagemaker, metrics = client("sagemaker"), client("sagemaker-metrics")
    tags = [{"Key": "team", "Value": "red"}]
    sagemaker.create_experiment(ExperimentName="Boto-E", Description="d", Tags=tags)
    sagemaker.create_trial(TrialName="Boto-T", ExperimentName="Boto-E")
    made = sagemaker.create_trial_component(
        TrialComponentName="Boto-C",
        Status={"PrimaryStatus": "InProgress"},
        Parameters={"lr": {"NumberValue": 0.5}},
        InputArtifacts={"data": {"MediaType": "text/csv", "Value": "s3://b/k"}},
    )
    sagemaker.associate_trial_component(TrialComponentName="Boto-C", TrialName="Boto-T")
    metrics.batch_put_metrics(
        TrialComponentName="boto-c",
        MetricData=[{"MetricName": "loss", "Timestamp": 1.8e9, "Step": 1, "Value": 0.5}],
    )
    component = sagemaker.describe_trial_component(TrialComponentName="Boto-C")
    assert component["Metrics"][0]["Avg"] == 0.5
    assert component["Parameters"] == {"lr": {"NumberValue": 0.5}}
    assert component["TrialComponentArn"] == made["TrialComponentArn"]
    sagemaker.update_experiment(ExperimentName="Boto-E", DisplayName="shown")
    sagemaker.update_trial(TrialName="Boto-T", DisplayName="shown")
    sagemaker.update_trial_component(TrialComponentName="Boto-C", ParametersToRemove=["lr"])
    assert sagemaker.describe_experiment(ExperimentName="Boto-E")["DisplayName"] == "shown"
    assert sagemaker.describe_trial(TrialName="Boto-T")["ExperimentName"] == "Boto-E"
    names = [item["ExperimentName"] for item in sagemaker.list_experiments(MaxResults=100)["ExperimentSummaries"]]
    assert "Boto-E" in names
    assert len(sagemaker.list_trials(ExperimentName="Boto-E")["TrialSummaries"]) == 1
    assert len(sagemaker.list_trial_components(TrialName="Boto-T")["TrialComponentSummaries"]) == 1
    artifact = sagemaker.create_artifact(ArtifactName="a", ArtifactType="Model", Source={"SourceUri": "s3://b/m"})
    sagemaker.update_artifact(ArtifactArn=artifact["ArtifactArn"], Properties={"x": "y"})
    assert sagemaker.describe_artifact(ArtifactArn=artifact["ArtifactArn"])["Properties"] == {"x": "y"}
    assert len(sagemaker.list_artifacts(SourceUri="s3://b/m")["ArtifactSummaries"]) == 1
    ends = {"SourceArn": made["TrialComponentArn"], "DestinationArn": artifact["ArtifactArn"]}
    sagemaker.add_association(**ends, AssociationType="Produced")
    (edge,) = sagemaker.list_associations(**ends)["AssociationSummaries"]
    assert (edge["AssociationType"], edge["DestinationType"]) == ("Produced", "Model")
    answer = sagemaker.search(
        Resource="ExperimentTrialComponent",
        SearchExpression={"Filters": [{"Name": "Metrics.loss.Last", "Operator": "LessThan", "Value": "0.6"}]},
        SortBy="Metrics.loss.Last",
    )
    found = {item["TrialComponent"]["TrialComponentName"]: item["TrialComponent"] for item in answer["Results"]}
    assert found["Boto-C"]["Parents"] == [{"TrialName": "Boto-T", "ExperimentName": "Boto-E"}]
    for resource in ("Experiment", "ExperimentTrial", "TrainingJob"):
        assert "Results" in sagemaker.search(Resource=resource)
    sagemaker.delete_association(**ends)
    sagemaker.delete_artifact(ArtifactArn=artifact["ArtifactArn"])
    sagemaker.disassociate_trial_component(TrialComponentName="Boto-C", TrialName="Boto-T")
    sagemaker.delete_trial_component(TrialComponentName="Boto-C")
    sagemaker.delete_trial(TrialName="Boto-T")
    sagemaker.delete_experiment(ExperimentName="Boto-E")
    with pytest.raises(sagemaker.exceptions.ResourceNotFound, match="Boto-E"):
        sagemaker.describe_experiment(ExperimentName="Boto-E")


def test_names_that_the_model_forbids_are_refused(client):
    sagemaker = client("sagemaker")
    for name in ("-x", "a_b", "x" * 121):
        with pytest.raises(ClientError) as error:
            sagemaker.create_experiment(ExperimentName=name)
        assert error.value.response["Error"]["Code"] == "ValidationException"


@pytest.mark.long
def test_v3_run_logs_from_outside_and_from_inside_its_job_and_its_resource_classes_read_it(service):
    output, facts = service.run_client(SDK3_PYTHON, "v3_experiments.py")
    assert facts["status"] == "Completed", output[-3000:]
    assert sorted(facts["runs"]) == ["first", "second"], "the component of the job is no run"
    assert facts["parameters"] == {"lr": 0.1, "opt": "adam", "layers": 3.0, "from-job": "yes"}
    assert facts["metrics"]["loss"] == [12, pytest.approx(1 / 12), 1.0, pytest.approx(1 / 12)]
    assert facts["metrics"]["job-loss"] == [3, 1.0, 3.0, 1.0]
    assert facts["metrics"]["late"] == [1, 0.5, 0.5, 0.5]
    assert facts["values"] == [[0, 1, 2], [3.0, 2.0, 1.0]]
    assert (facts["outputs"], facts["inputs"]) == (["notes"], ["weights"])
    assert facts["component_status"] == "Completed"
    assert facts["job_component"] == ["Completed", 4.0]
    names = ["Digits3-Job-1-aws-training-job", "digits3-first", "digits3-second"]
    assert facts["components"] == names
    assert sorted(facts["rows"]) == names
    assert facts["rows"][0] == "digits3-second", "sorted by the least loss, greatest first"
    assert {"lr", "loss - StdDev", "notes - Value", "Trials"} <= set(facts["columns"])
    assert (facts["experiments"], facts["left"]) == (["digits3"], [])
