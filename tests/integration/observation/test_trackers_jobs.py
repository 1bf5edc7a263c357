"""Jobs whose programs log to MLflow and W&B with unmodified clients: values are parsed, stored and passed on."""

import json
import subprocess
import tarfile
from pathlib import Path

import pytest
from boto3_clients import Clients, job_request, log_of, unique, wait
from program_jobs import members_of, object_at
from running_service import SDK3_PYTHON
from training_pages import page_of

from needs import python_of

pytestmark = [pytest.mark.clients, pytest.mark.timeout(360), pytest.mark.xdist_group("trackers-jobs")]

LIMIT_S = 200
WANDB_PYTHON = python_of("wandb")
FOLDER = Path(__file__).parent
READS_RUNS = """
import json, sys, mlflow
mlflow.set_tracking_uri(sys.argv[1])
(run,) = mlflow.search_runs(output_format="list", search_all_experiments=True)
history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")
print(json.dumps([run.info.run_id, run.info.status, run.data.params, [[one.step, one.value] for one in history]]))
"""


def tracked(service, python, program, *arguments, **environment):
    """Run a program in a job; return its metrics by name, its log, and its output.tar.gz."""
    aws, name = Clients(service), unique("tracked")
    command = " ".join(map(str, (python, FOLDER / program, *arguments)))
    request = job_request(name, command, Environment=environment)
    aws.sagemaker.create_training_job(**request)
    facts = wait(aws, name, timeout_s=LIMIT_S)
    assert facts["TrainingJobStatus"] == "Completed", log_of(aws, name)
    metrics = {one["name"]: one for one in page_of(service, name, "training")["metrics"]}
    final = {metric["MetricName"]: metric["Value"] for metric in facts["FinalMetricDataList"]}
    assert final["loss"] == pytest.approx(0.2)
    results = object_at(aws, facts["ModelArtifacts"]["S3ModelArtifacts"].replace("model.tar", "output.tar"))
    return metrics, log_of(aws, name), results


@pytest.mark.needs("sdk3")
@pytest.mark.long
def test_mlflow_runs_are_in_the_artifact_and_their_values_in_the_job(service, tmp_path):
    metrics, lines, results = tracked(service, SDK3_PYTHON, "mlflow_program.py")
    assert {name: metrics[name]["num_values"] for name in ("loss", "eval/accuracy")} == {"loss": 5, "eval/accuracy": 5}
    assert metrics["eval/accuracy"]["step"] == 5
    (tmp_path / "output.tar.gz").write_bytes(results)
    with tarfile.open(tmp_path / "output.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    (store,) = tmp_path.rglob("mlruns")
    completed = subprocess.run(
        [SDK3_PYTHON, "-c", READS_RUNS, f"file:{store}"],
        env={"PATH": "/usr/bin:/bin", "MLFLOW_ALLOW_FILE_STORE": "true", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert completed.returncode == 0, completed.stderr[-3000:]
    run, status, parameters, history = json.loads(completed.stdout.splitlines()[-1])
    assert f"run {run}" in lines
    assert (status, parameters) == ("FINISHED", {"lr": "0.1"})
    assert history == [[step, 1 / step] for step in range(1, 6)]
    assert any(path.endswith("artifacts/note.txt") for path in members_of(results))


@pytest.mark.needs("wandb")
@pytest.mark.parametrize("arguments", [(), ("login",)], ids=["plain", "login"])
def test_offline_wandb_runs_are_in_the_artifact_and_their_values_in_the_job(service, arguments):
    metrics, lines, results = tracked(service, WANDB_PYTHON, "wandb_program.py", *arguments)
    assert {name: one["num_values"] for name, one in metrics.items()} == {"loss": 5, "eval.accuracy": 5, "best": 5}
    assert (metrics["eval.accuracy"]["last"], metrics["eval.accuracy"]["step"]) == (1.0, 5)
    (run,) = (line.split()[1] for line in lines if line.startswith("run "))
    assert [path for path in members_of(results) if path.endswith(f"{run}/run-{run}.wandb")]
