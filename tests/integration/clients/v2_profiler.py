"""SDK v2: an estimator with profiler rules; their statuses and the report, at the documented places."""

import time

import sagemaker
from common_client import CPU_TYPE, ROLE, report
from sagemaker.debugger import ProfilerConfig, ProfilerRule, rule_configs
from sagemaker.estimator import Estimator

LIMIT_S = 120

session = sagemaker.Session()
estimator = Estimator(
    image_uri="registry.example/team/bring-your-own:1",
    role=ROLE,
    instance_count=1,
    instance_type=CPU_TYPE,
    output_path=f"s3://{session.default_bucket()}/profiled",
    container_entry_point=["bash", "-c", "for i in $(seq 40); do sleep 0.1; done"],
    rules=[
        ProfilerRule.sagemaker(rule_configs.ProfilerReport(CPUBottleneck_cpu_threshold=77)),
        ProfilerRule.sagemaker(rule_configs.LowGPUUtilization()),
    ],
    profiler_config=ProfilerConfig(system_monitor_interval_millis=100),
    sagemaker_session=session,
)
estimator.fit(wait=True, logs="None")  # asks every 5 s for the status, with logs every 30 s

job = estimator.latest_training_job
end_s = time.monotonic() + LIMIT_S
while any(row["RuleEvaluationStatus"] == "InProgress" for row in job.rule_job_summary()):
    assert time.monotonic() < end_s, job.rule_job_summary()
    time.sleep(0.3)

s3 = session.boto_session.client("s3")
prefix = f"profiled/{job.name}/rule-output/"
listed = s3.list_objects_v2(Bucket=session.default_bucket(), Prefix=prefix)
keys = [item["Key"].removeprefix(prefix) for item in listed.get("Contents", [])]
page = s3.get_object(
    Bucket=session.default_bucket(), Key=f"{prefix}ProfilerReport/profiler-output/profiler-report.html"
)
bottleneck = s3.get_object(
    Bucket=session.default_bucket(), Key=f"{prefix}ProfilerReport/profiler-output/profiler-reports/CPUBottleneck.json"
)
report(
    name=job.name,
    statuses={row["RuleConfigurationName"]: row["RuleEvaluationStatus"] for row in job.rule_job_summary()},
    details={row["RuleConfigurationName"]: row["StatusDetails"] for row in job.rule_job_summary()},
    profiling=job.describe()["ProfilingStatus"],
    keys=keys,
    page=page["Body"].read().decode()[:200],
    bottleneck=bottleneck["Body"].read().decode(),
)
