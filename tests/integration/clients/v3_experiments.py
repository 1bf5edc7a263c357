"""SDK v3: Run, load_run in a job, list_runs, ExperimentAnalytics, and the resource classes of their results."""

import os
import sys
import tempfile
from datetime import UTC, datetime

from common_client import CPU_TYPE, ROLE, SOURCE, report
from sagemaker.core.analytics import ExperimentAnalytics
from sagemaker.core.experiments.run import Run, list_runs, load_run
from sagemaker.core.helper.session_helper import Session
from sagemaker.core.resources import Experiment, TrainingJob, Trial, TrialComponent
from sagemaker.core.shapes import (
    AlgorithmSpecification,
    Channel,
    DataSource,
    ExperimentConfig,
    MetricQuery,
    OutputDataConfig,
    RawMetricData,
    ResourceConfig,
    S3DataSource,
    StoppingCondition,
)

JOB = "Digits3-Job-1"
session = Session()
script = session.upload_data(os.path.join(SOURCE, "loads_run_v3.py"), key_prefix="experiments3/script")
with tempfile.TemporaryDirectory() as folder:
    notes = os.path.join(folder, "notes.txt")
    with open(notes, "w") as file:
        file.write("hello\n")
    with Run(experiment_name="Digits3", run_name="first", sagemaker_session=session) as run:
        run.log_parameter("lr", 0.1)
        run.log_parameters({"opt": "adam", "layers": 3})
        for step in range(12):
            run.log_metric("loss", 1.0 / (1 + step), step=step)
        run.log_file(notes, name="notes")
        run.log_artifact("weights", "s3://somewhere/weights", media_type="text/plain", is_output=False)
        run._log_graph_artifact(artifact_name="confusion", data={"a": 1}, graph_type="ConfusionMatrix", is_output=True)
        # Trainers of v3 do not pass on the Run that encloses their call, so the request names the run.
        config = run.experiment_config
        job = TrainingJob.create(
            training_job_name=JOB,
            role_arn=ROLE,
            algorithm_specification=AlgorithmSpecification(
                training_image="registry.example/team/bring-your-own:1",
                training_input_mode="File",
                container_entrypoint=[sys.executable, "/opt/ml/input/data/script/loads_run_v3.py"],
            ),
            hyper_parameters={"depth": "4"},
            input_data_config=[
                Channel(
                    channel_name="script",
                    data_source=DataSource(s3_data_source=S3DataSource(s3_data_type="S3Prefix", s3_uri=script)),
                )
            ],
            output_data_config=OutputDataConfig(s3_output_path=f"s3://{session.default_bucket()}/experiments3"),
            resource_config=ResourceConfig(instance_count=1, instance_type=CPU_TYPE, volume_size_in_gb=10),
            stopping_condition=StoppingCondition(max_runtime_in_seconds=600),
            experiment_config=ExperimentConfig(
                experiment_name=config["ExperimentName"], trial_name=config["TrialName"], run_name=config["RunName"]
            ),
        )
        job.wait(poll=1, timeout=300)

try:
    with Run(experiment_name="Digits3", run_name="second", sagemaker_session=session):
        raise ValueError("went wrong")
except ValueError:
    pass
with load_run(experiment_name="Digits3", run_name="second", sagemaker_session=session) as again:
    again.log_metric("loss", 0.25)

runs = [item.run_name for item in list_runs("digits3", sagemaker_session=session)]
frame = ExperimentAnalytics(
    sagemaker_session=session, experiment_name="digits3", sort_by="metrics.loss.min"
).dataframe()

experiment = Experiment.get(experiment_name="digits3")
(trial,) = Trial.get_all(experiment_name="digits3")
first = TrialComponent.get(trial_component_name="digits3-first")
first.batch_put_metrics(metric_data=[RawMetricData(metric_name="late", timestamp=datetime.now(UTC), step=1, value=0.5)])
first.refresh()
of_job = TrialComponent.get(trial_component_name=f"{JOB}-aws-training-job")
query = MetricQuery(
    metric_name="job-loss",
    resource_arn=first.trial_component_arn,
    metric_stat="Last",
    period="IterationNumber",
    x_axis_type="IterationNumber",
)
(values,) = TrialComponent.batch_get_metrics(metric_queries=[query]).metric_query_results
components = list(TrialComponent.get_all(trial_name=trial.trial_name))
told = {
    name: value.number_value if isinstance(value.number_value, float) else value.string_value
    for name, value in first.parameters.items()
}
facts = {
    "runs": runs,
    "status": job.training_job_status,
    "parameters": told,
    "metrics": {item.metric_name: [item.count, item.min, item.max, item.last] for item in first.metrics},
    "values": [values.x_axis_values, values.metric_values],
    "outputs": sorted(first.output_artifacts),
    "inputs": sorted(first.input_artifacts),
    "component_status": first.status.primary_status,
    "job_component": [of_job.status.primary_status, of_job.parameters["depth"].number_value],
    "components": sorted(component.trial_component_name for component in components),
    "rows": list(frame["TrialComponentName"]),
    "columns": sorted(frame.columns),
    "experiments": [item.experiment_name for item in Experiment.get_all() if item.experiment_name == "digits3"],
}
for component in components:
    component.disassociate_trail(trial_name=trial.trial_name)
    component.delete()
trial.delete()
experiment.delete()
report(**facts, left=[item.experiment_name for item in Experiment.get_all() if item.experiment_name == "digits3"])
