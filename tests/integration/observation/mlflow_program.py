"""A training that logs to MLflow as usual scripts do; it contains no setting for Clary."""

import mlflow

with mlflow.start_run() as run:
    mlflow.log_param("lr", 0.1)
    for step in range(1, 6):
        mlflow.log_metrics({"loss": 1 / step, "eval/accuracy": step / 5}, step=step)
    mlflow.log_text("hello", "note.txt")
print("run", run.info.run_id, flush=True)
