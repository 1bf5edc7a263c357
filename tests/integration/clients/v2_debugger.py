"""SDK v2: DebuggerHookConfig, rules with an action, the summary of their statuses, and smdebug's reading from S3."""

import os
import sys

import sagemaker
from common_client import CPU_TYPE, HERE, ROLE, SOURCE, report
from sagemaker.debugger import CollectionConfig, DebuggerHookConfig, Rule, rule_configs
from sagemaker.pytorch import PyTorch
from sagemaker.s3 import S3Downloader

CLARY = os.path.join(HERE, "..", "..", "..", "src")  # imports Clary from the checkout instead of an installation
sys.path += [CLARY, os.path.join(CLARY, "clary", "compat")]
from smdebug.trials import create_trial  # noqa: E402 - found by the line above

session = sagemaker.Session()
own_rule = Rule.custom(
    name="MyRule",
    image_uri="ignored:1",
    instance_type="ml.t3.medium",
    volume_size_in_gb=5,
    source=os.path.join(SOURCE, "debugger_rule.py"),
    rule_to_invoke="LossBelow",
    rule_parameters={"limit": "1000"},
    actions=rule_configs.ActionList(rule_configs.StopTraining()),
)
estimator = PyTorch(
    entry_point="debugged.py",
    source_dir=SOURCE,
    role=ROLE,
    framework_version="2.8.0",
    py_version="py312",
    instance_count=1,
    instance_type=CPU_TYPE,
    sagemaker_session=session,
    rules=[
        Rule.sagemaker(rule_configs.vanishing_gradient()),
        Rule.sagemaker(rule_configs.loss_not_decreasing()),
        own_rule,
    ],
    debugger_hook_config=DebuggerHookConfig(
        s3_output_path=f"s3://{session.default_bucket()}/tensors-of-v2",
        hook_parameters={"save_interval": "5"},
        collection_configs=[
            CollectionConfig(name="weights"),
            CollectionConfig(name="losses", parameters={"save_interval": "5"}),
        ],
    ),
)
estimator.fit(wait=False)
job = estimator.latest_training_job
waiter = session.sagemaker_client.get_waiter("training_job_completed_or_stopped")  # fit(wait=True) polls every 30 s
waiter.wait(TrainingJobName=job.name, WaiterConfig={"Delay": 1, "MaxAttempts": 300})
session.logs_for_job(job.name)
trial = create_trial(estimator.latest_job_debugger_artifacts_path())
trial.wait_for_steps([0], limit_s=60)
loss = trial.tensor("MSELoss_output_0")
report(
    status=job.describe()["TrainingJobStatus"],
    summary=job.rule_job_summary(),
    has_ended=trial.has_ended,
    workers=trial.workers(),
    losses={step: float(loss.value(step)) for step in loss.steps()},
    keys=S3Downloader.list(estimator.latest_job_debugger_artifacts_path(), sagemaker_session=session),
)
