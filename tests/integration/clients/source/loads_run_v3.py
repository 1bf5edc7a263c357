"""Script with SDK v3 in a job with an ExperimentConfig: `load_run` finds its run, and the script logs to it."""

from sagemaker.core.experiments.run import load_run
from sagemaker.core.helper.session_helper import Session

with load_run(sagemaker_session=Session()) as run:
    run.log_parameter("from-job", "yes")
    for step in range(3):
        run.log_metric("job-loss", 3.0 - step, step=step)
    print("loaded run", run.run_name, "of", run.experiment_name, flush=True)
