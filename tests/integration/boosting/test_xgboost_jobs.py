"""SageMaker's built-in XGBoost in jobs: images without a script, their channels, metrics and models."""

import random
import re
import subprocess
import time

import pytest
from boto3_clients import Clients, job_request, log_of, refusal, unique, wait
from framework_jobs import framework_service
from program_jobs import BUCKET, channel, failure_of, members_of, object_at, put, run
from running_service import SDK2_PYTHON

from needs import python_of

pytestmark = [
    pytest.mark.clients,
    pytest.mark.needs("xgboost"),
    pytest.mark.needs("sdk2"),
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("xgboost-jobs"),
]

IMAGE = "246618743249.dkr.ecr.us-west-2.amazonaws.com/sagemaker-xgboost:1.7-1"
PREDICT = """
import sys, numpy, xgboost
rows = numpy.loadtxt(sys.argv[1], delimiter=",")
for name in sys.argv[2:]:
    model = xgboost.Booster()
    model.load_model(name)
    found = model.predict(xgboost.DMatrix(rows[:, 1:])) > 0.5
    print("accuracy", float((found == rows[:, 0]).mean()), model.num_boosted_rounds())
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    home = tmp_path_factory.mktemp("xgboost") / "home"
    with framework_service(home, "xgboost", image="sagemaker-xgboost:*") as running:
        yield running


@pytest.fixture(scope="module")
def aws(service):
    return Clients(service)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Rows of two classes, the same in both formats; a fifth of the labels of the training data is wrong."""
    folder = tmp_path_factory.mktemp("rows")
    source = random.Random(11)
    for name, num_rows, noise in (("train", 400, 0.2), ("validation", 100, 0.0)):
        rows = [[round(source.uniform(-1, 1), 4) for _ in range(4)] for _ in range(num_rows)]
        labels = [int((row[0] + row[1] > 0) != (source.random() < noise)) for row in rows]
        csv = "\n".join(",".join(map(str, [label, *row])) for label, row in zip(labels, rows, strict=True))
        libsvm = "\n".join(
            f"{label} " + " ".join(f"{index}:{value}" for index, value in enumerate(row))
            for label, row in zip(labels, rows, strict=True)
        )
        (folder / f"{name}.csv").write_text(csv + "\n")
        (folder / f"{name}.libsvm").write_text(libsvm + "\n")
    return folder


@pytest.mark.long(30)
def test_sdk_v2_trains_the_built_in_algorithm_on_csv_and_libsvm(service, folder):
    output, facts = service.run_client(SDK2_PYTHON, "v2_xgboost.py", str(folder))
    assert facts["members"] == ["xgboost-model"]
    lines = re.findall(r"\[(\d+)\]#011train-auc:[0-9.]+#011train-error:[0-9.]+#011validation-auc:([0-9.]+)#011", output)
    assert [int(number) for number, _ in lines] == [*range(20), *range(20)]
    assert facts["metrics"]["validation:auc"] == pytest.approx(float(lines[19][1]), abs=1e-5)
    assert set(facts["metrics"]) == {"train:auc", "train:error", "validation:auc", "validation:error"}
    assert "hyperparameter depth: the algorithm XGBoost has no hyperparameter of this name" in facts["failure"]
    arguments = [folder / "validation.csv", folder / "csv-model", folder / "xgboost-model"]
    done = subprocess.run(
        [python_of("xgboost"), "-W", "ignore", "-c", PREDICT, *arguments], capture_output=True, text=True, check=True
    )
    found = [line.split()[1:] for line in done.stdout.splitlines()]
    assert found[0] == found[1], "the same rows in two formats give the same model"
    assert float(found[0][0]) > 0.8, "though a fifth of the labels was wrong"
    assert found[0][1] == "20"


@pytest.mark.long(12)
def test_sdk_v2_tunes_the_built_in_algorithm_by_a_metric_of_its_image(service, folder):
    _, facts = service.run_client(SDK2_PYTHON, "v2_xgboost_tuner.py", str(folder))
    assert facts["statuses"] == ["Completed"] * 2
    assert all(0.7 < value <= 1 for value in facts["values"])
    assert facts["best"]


def request_for(aws, folder, hyperparameters, *, image=IMAGE, **members):
    """Return a request as boto3 sends it, without metric definitions."""
    uri = put(aws, "xgboost/boto3/rows.csv", (folder / "train.csv").read_bytes())
    return {
        **job_request(unique("xgboost"), ""),
        "AlgorithmSpecification": {"TrainingImage": image, "TrainingInputMode": "File"},
        "HyperParameters": {"objective": "binary:logistic", "num_round": "5", **hyperparameters},
        "InputDataConfig": [channel("train", uri, content_type="text/csv")],
        **members,
    }


def test_a_stopped_job_has_the_model_of_its_last_round(aws, folder):
    request = request_for(aws, folder, {"num_round": "1000000", "save_model_on_termination": "true", "max_depth": "1"})
    name = request["TrainingJobName"]
    aws.sagemaker.create_training_job(**request)
    deadline_s = time.monotonic() + 60
    while not any(line.startswith("[3]#011train-logloss:") for line in log_of(aws, name)):
        assert time.monotonic() < deadline_s, log_of(aws, name)
        time.sleep(0.2)
    aws.sagemaker.stop_training_job(TrainingJobName=name)
    described = wait(aws, name)
    assert described["TrainingJobStatus"] == "Stopped"
    assert list(members_of(object_at(aws, described["ModelArtifacts"]["S3ModelArtifacts"]))) == ["xgboost-model"]
    assert "train:logloss" in {item["MetricName"] for item in described["FinalMetricDataList"]}


def test_an_error_of_xgboost_is_the_reason_of_the_failure(aws, folder):
    reason = failure_of(
        run(
            aws,
            request_for(aws, folder, {"objective": "multi:softmax", "num_class": "2", "eval_metric": "auc,nothing"}),
        )
    )
    assert "xgboost: " in reason
    assert "Unknown metric function nothing" in reason


def test_algorithms_that_are_not_offered_are_refused_at_creation(aws, folder):
    create = aws.sagemaker.create_training_job
    other = request_for(aws, folder, {}, image="174872318107.dkr.ecr.us-west-2.amazonaws.com/kmeans:1")
    assert "is SageMaker's built-in algorithm K-Means, which is not offered here" in str(refusal(create, **other))


def test_two_hosts_divide_the_data_and_train_one_model(aws, folder):
    lines = (folder / "train.csv").read_text().splitlines(keepends=True)
    prefix = unique("xgboost-parts")
    for index in range(2):
        put(aws, f"{prefix}/part-{index}.csv", "".join(lines[index * 200 : index * 200 + 200]))
    hosts = {"InstanceCount": 2, "InstanceType": "ml.m5.large", "VolumeSizeInGB": 10}
    request = request_for(aws, folder, {"eval_metric": "error"}, ResourceConfig=hosts)
    parts = channel(
        "train", f"s3://{BUCKET}/{prefix}/", content_type="text/csv", S3DataDistributionType="ShardedByS3Key"
    )
    described = run(aws, {**request, "InputDataConfig": [parts]})
    assert described["TrainingJobStatus"] == "Completed", described.get("FailureReason")
    assert list(members_of(object_at(aws, described["ModelArtifacts"]["S3ModelArtifacts"]))) == ["xgboost-model"]
    log = log_of(aws, described["TrainingJobName"])
    assert sum("train: 200 rows, 4 features" in line for line in log) == 2
    rounds = [line for line in log if re.match(r"\[\d\]#011train-error:", line)]
    assert len(rounds) == 5, "one host prints the metrics"
