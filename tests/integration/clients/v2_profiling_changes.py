"""SDK v2: profiling switched on, changed and off while a job runs; the summary of its rules; its metrics as a table."""

import time

import sagemaker
from common_client import CPU_TYPE, ROLE, report
from sagemaker.analytics import TrainingJobAnalytics
from sagemaker.debugger import FrameworkProfile, ProfilerRule, rule_configs
from sagemaker.estimator import Estimator

LIMIT_S = 120

session = sagemaker.Session()
estimator = Estimator(
    image_uri="registry.example/team/bring-your-own:1",
    role=ROLE,
    instance_count=1,
    instance_type=CPU_TYPE,
    output_path=f"s3://{session.default_bucket()}/changed",
    container_entry_point=["bash", "-c", "for i in 4 2 1; do echo loss=0.$i; done; sleep 300"],
    metric_definitions=[{"Name": "loss", "Regex": "loss=([0-9.]+)"}],
    disable_profiler=True,
    sagemaker_session=session,
)
estimator.fit(wait=False)
job = estimator.latest_training_job


def until(look, wanted):
    """Call `look` until `wanted` holds for its result; return the result."""
    end_s = time.monotonic() + LIMIT_S
    while not wanted(found := look()):
        assert time.monotonic() < end_s, found
        time.sleep(0.3)
    return found


def refusal(change):
    """Return the error with which the SDK refuses a change."""
    try:
        change()
    except ValueError as error:
        return str(error)
    raise AssertionError("not refused")


def profiling():
    """Return the job's profiling status and configuration from the service."""
    facts = job.describe()
    return [facts["ProfilingStatus"], facts.get("ProfilerConfig")]


until(lambda: job.describe()["SecondaryStatus"], lambda status: status == "Training")
states = {"created": profiling(), "off twice": refusal(estimator.disable_profiling)}
estimator.enable_default_profiling()
place = estimator.latest_job_profiler_artifacts_path()
states |= {"on": profiling(), "on twice": refusal(estimator.enable_default_profiling)}
estimator.update_profiler(
    rules=[ProfilerRule.sagemaker(rule_configs.LowGPUUtilization(threshold_p95=60))], system_monitor_interval_millis=100
)
states["updated"] = profiling()
summary = job.rule_job_summary()
estimator.update_profiler(framework_profile_params=FrameworkProfile(start_step=3, num_steps=2))
states["framework"] = profiling()
estimator.update_profiler(disable_framework_metrics=True)
states["no framework"] = profiling()
estimator.disable_profiling()
states["off"] = profiling()
until(job.rule_job_summary, lambda rows: rows[0]["RuleEvaluationStatus"] == "Stopped")
until(
    lambda: TrainingJobAnalytics(job.name, metric_names=["loss"], sagemaker_session=session).dataframe(),
    lambda frame: len(frame) > 0,
)
job.stop()
until(lambda: job.describe()["TrainingJobStatus"], lambda status: status == "Stopped")
frame = TrainingJobAnalytics(job.name, sagemaker_session=session).dataframe()
report(
    name=job.name,
    states=states,
    summary=[[row["RuleConfigurationName"], row["RuleEvaluationStatus"]] for row in summary],
    final=[[row["RuleConfigurationName"], row["RuleEvaluationStatus"]] for row in job.rule_job_summary()],
    place=place,
    frame=frame.to_dict("list"),
)
