"""SDK v3: @remote within a Run, which the function finds on its host and logs to."""

from common_client import CPU_TYPE, ROLE, report
from sagemaker.core.experiments.run import Run
from sagemaker.core.helper.session_helper import Session
from sagemaker.core.remote_function import remote

session = Session()


@remote(
    image_uri="registry.example/team/remote3:1",
    role=ROLE,
    instance_type=CPU_TYPE,
    s3_root_uri="s3://clary/remote3",
    keep_alive_period_in_seconds=0,
    sagemaker_session=session,
)
def multiply(a, b):
    """Run on the host."""
    from sagemaker.core.experiments.run import load_run

    with load_run() as inside:
        inside.log_metric("product", a * b, step=1)
    return a * b


with Run(experiment_name="remote3", run_name="only", sagemaker_session=session) as run:
    result = multiply(6, 7)
component = session.sagemaker_client.describe_trial_component(TrialComponentName="remote3-only")
report(
    result=result,
    metrics={item["MetricName"]: item["Last"] for item in component["Metrics"]},
    status=component["Status"]["PrimaryStatus"],
)
