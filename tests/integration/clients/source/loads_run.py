"""Script of a job that was created within a Run: `load_run` finds that run without its name; metrics go to it."""

import sagemaker
from sagemaker.experiments.run import load_run

with load_run(sagemaker_session=sagemaker.Session()) as run:
    run.log_parameter("from-job", "yes")
    for step in range(3):
        run.log_metric("job-loss", 3.0 - step, step=step)
    print("loaded run", run.run_name, "of", run.experiment_name, flush=True)
