"""SDK v2: Run, load_run in a job, list_runs and ExperimentAnalytics."""

import os
import tempfile

import sagemaker
from common_client import CPU_TYPE, ROLE, SOURCE, report
from sagemaker.analytics import ExperimentAnalytics
from sagemaker.estimator import Estimator
from sagemaker.experiments.experiment import Experiment
from sagemaker.experiments.run import Run, list_runs, load_run

session = sagemaker.Session()
client = session.sagemaker_client
script = session.upload_data(os.path.join(SOURCE, "loads_run.py"), key_prefix="experiments/script")
with tempfile.TemporaryDirectory() as folder:
    notes = os.path.join(folder, "notes.txt")
    with open(notes, "w") as file:
        file.write("hello\n")
    with Run(experiment_name="Digits", run_name="first", sagemaker_session=session) as run:
        run.log_parameter("lr", 0.1)
        run.log_parameters({"opt": "adam", "layers": 3})
        for step in range(12):
            run.log_metric("loss", 1.0 / (1 + step), step=step)
        run.log_file(notes, name="notes")
        run.log_artifact("weights", "s3://somewhere/weights", media_type="text/plain", is_output=False)
        # The call that log_confusion_matrix makes after scikit-learn has counted; scikit-learn is not installed here.
        run._log_graph_artifact(artifact_name="confusion", data={"a": 1}, graph_type="ConfusionMatrix", is_output=True)
        Estimator(
            image_uri="registry.example/team/remote:1",
            role=ROLE,
            instance_count=1,
            instance_type=CPU_TYPE,
            container_entry_point=["python3", "/opt/ml/input/data/script/loads_run.py"],
            environment={"AWS_DEFAULT_REGION": session.boto_region_name},
            hyperparameters={"depth": 4},
            sagemaker_session=session,
            base_job_name="Digits-Job",
        ).fit({"script": script}, job_name="Digits-Job-1", logs="None")

try:
    with Run(experiment_name="Digits", run_name="second", sagemaker_session=session):
        raise ValueError("went wrong")
except ValueError:
    pass
with load_run(experiment_name="Digits", run_name="second", sagemaker_session=session) as again:
    again.log_metric("loss", 0.25)

runs = [item.run_name for item in list_runs("digits", sagemaker_session=session)]
first = client.describe_trial_component(TrialComponentName="digits-first")
job = client.describe_trial_component(TrialComponentName="Digits-Job-1-aws-training-job")
edges = client.list_associations(SourceArn=first["TrialComponentArn"])["AssociationSummaries"]
frame = ExperimentAnalytics(sagemaker_session=session, experiment_name="digits", sort_by="metrics.loss.min").dataframe()
values = session.sagemaker_metrics_client.batch_get_metrics(
    MetricQueries=[
        {
            "MetricName": "job-loss",
            "ResourceArn": first["TrialComponentArn"],
            "MetricStat": "Last",
            "Period": "IterationNumber",
            "XAxisType": "IterationNumber",
        }
    ]
)["MetricQueryResults"][0]
report(
    runs=runs,
    parameters=first["Parameters"],
    metrics={item["MetricName"]: [item["Count"], item["Min"], item["Max"], item["Last"]] for item in first["Metrics"]},
    outputs=sorted(first["OutputArtifacts"]),
    inputs=sorted(first["InputArtifacts"]),
    edges=[edge["AssociationType"] for edge in edges],
    status=first["Status"]["PrimaryStatus"],
    job_status=job["Status"]["PrimaryStatus"],
    job_parameters=job["Parameters"],
    columns=sorted(frame.columns),
    rows=list(frame["TrialComponentName"]),
    values=[values["XAxisValues"], values["MetricValues"]],
)
Experiment.load("digits", sagemaker_session=session)._delete_all(action="--force")
