"""The program of the built-in XGBoost with the real library, in folders like `/opt/ml`."""

import json
import random
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from needs import python_of

pytestmark = [pytest.mark.needs("xgboost"), pytest.mark.timeout(120)]

SOURCE = Path(__file__).resolve().parents[4] / "src"
LOAD = """
import pickle, sys, xgboost
try:
    model = pickle.load(open(sys.argv[1], "rb"))
except Exception:
    model = xgboost.Booster(model_file=sys.argv[1])
print(model.num_boosted_rounds())
"""
CSV = {"ContentType": "text/csv", "TrainingInputMode": "File"}


def rows(num_rows, seed, *, noise=0.0):
    """Return lines of CSV: the label says whether two of three features have a positive sum."""
    source = random.Random(seed)
    lines = []
    for _ in range(num_rows):
        values = [round(source.uniform(-1, 1), 4) for _ in range(3)]
        label = int((values[0] + values[1] > 0) != (source.random() < noise))
        lines.append(",".join(map(str, [label, *values])))
    return "\n".join(lines) + "\n"


def make_root(folder, hyperparameters, *, train=None, validation=None, hosts=("algo-1",), checkpoints=False):
    """Write a folder like `/opt/ml`; return its path."""
    channels = {"train": rows(200, 1, noise=0.2) if train is None else train}
    if validation is not None:
        channels["validation"] = validation
    for name, text in channels.items():
        path = folder / "input/data" / name / "rows.csv"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    documents = {
        "hyperparameters": {"objective": "binary:logistic", "num_round": "5", **hyperparameters},
        "inputdataconfig": dict.fromkeys(channels, CSV),
        "resourceconfig": {"hosts": list(hosts)},
    }
    if checkpoints:
        documents["checkpointconfig"] = {"LocalPath": str(folder / "checkpoints")}
    for name in ("model", "output", "input/config"):
        (folder / name).mkdir(parents=True)
    for stem, document in documents.items():
        (folder / f"input/config/{stem}.json").write_text(json.dumps(document))
    return folder


def command(root, *options):
    return [str(python_of("xgboost")), "-m", "clary.train.boosting", str(root), *options]


def start(root, *options):
    variables = {"PYTHONPATH": str(SOURCE), "PATH": "/usr/bin:/bin", "SM_NUM_CPUS": "1"}
    return subprocess.Popen(
        command(root, *options), env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def train(root, *options):
    """Run the program; return its lines of rounds and all its output."""
    process = start(root, *options)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, output + errors
    return [line for line in output.splitlines() if line.startswith("[")], output + errors


def failure(root):
    """Run the program, which fails; return the text of the failure."""
    process = start(root)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    text = (root / "output/failure").read_text()
    assert errors.strip().endswith(text.strip())
    return text


def num_rounds(path):
    """Return the number of rounds of a model's file."""
    arguments = [str(python_of("xgboost")), "-W", "ignore", "-c", LOAD, str(path)]
    return int(subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=60).stdout)


def test_rounds_are_printed_and_the_model_is_written(tmp_path):
    root = make_root(tmp_path, {"eval_metric": "error,f1", "seed": "1"}, validation=rows(50, 2))
    lines, output = train(root)
    number = r"[0-9]\.[0-9]{5}"
    form = (
        rf"\[(\d)\]#011train-error:{number}#011train-f1:{number}#011validation-error:{number}#011validation-f1:{number}"
    )
    assert [re.fullmatch(form, line)[1] for line in lines] == ["0", "1", "2", "3", "4"]
    assert "train: 200 rows, 3 features, 1 files of CSV" in output
    assert "Warning" not in output
    assert sorted(path.name for path in (root / "model").iterdir()) == ["xgboost-model"]
    assert num_rounds(root / "model/xgboost-model") == 5


def test_models_of_early_releases_are_pickles(tmp_path):
    root = make_root(tmp_path, {})
    train(root, "--pickle")
    assert (root / "model/xgboost-model").read_bytes()[:1] == b"\x80"
    assert num_rounds(root / "model/xgboost-model") == 5


def test_training_stops_early_and_keeps_the_best_rounds(tmp_path):
    settings = {
        "num_round": "200",
        "early_stopping_rounds": "3",
        "_tuning_objective_metric": "validation:auc",
        "eta": "1",
    }
    lines, _ = train(make_root(tmp_path, settings, validation=rows(60, 2, noise=0.3)))
    values = [float(re.search(r"validation-auc:([0-9.]+)", line)[1]) for line in lines]
    best = values.index(max(values))
    assert len(values) == best + 4 < 200
    assert num_rounds(tmp_path / "model/xgboost-model") == best + 1


def test_weights_change_the_model(tmp_path):
    text = "1,1,0\n0,9,0\n1,1,1\n0,1,1\n"  # the second column: weights of the rows in favour of 0
    settings = {"csv_weights": "1", "eval_metric": "error", "max_depth": "1"}
    lines, _ = train(make_root(tmp_path, settings, train=text, validation="1,3,0\n0,1,1\n"))
    # The zeros have most of the weight: both ones of `train`, 2 of 12, and that of `validation`, 3 of 4, are wrong.
    assert lines[0] == "[0]#011train-error:0.16667#011validation-error:0.75000"


def test_a_job_resumes_from_its_newest_readable_checkpoint(tmp_path):
    root = make_root(tmp_path, {"num_round": "7"}, checkpoints=True)
    lines, _ = train(root)
    assert len(lines) == 7
    folder = root / "checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == [f"xgboost-checkpoint.{number}" for number in range(2, 7)]
    (folder / "xgboost-checkpoint.6").write_bytes(b"{cut")
    lines, output = train(root)
    assert [line.partition("]")[0] for line in lines] == ["[6"]
    assert "checkpoint xgboost-checkpoint.6 cannot be read" in output
    assert "resumed from the checkpoint of round 5" in output
    assert num_rounds(root / "model/xgboost-model") == 7


def test_a_job_that_is_stopped_keeps_its_model_if_it_asks_for_it(tmp_path):
    settings = {"num_round": "1000000", "save_model_on_termination": "true", "max_depth": "1"}
    process = start(make_root(tmp_path, settings))
    deadline_s = time.monotonic() + 60
    while not process.stdout.readline().startswith("[3]"):
        assert time.monotonic() < deadline_s
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert num_rounds(tmp_path / "model/xgboost-model") >= 4


@pytest.mark.parametrize(
    ("hyperparameters", "train_text", "words"),
    [
        ({"objective": "binary:logistic"}, "5,1\n2,1\n", "xgboost: "),
        ({"eval_metric": "nothing"}, None, "Unknown metric function nothing"),
        ({"objective": "reg:nothing"}, None, "Unknown objective function: `reg:nothing`"),
        ({"depth": "1"}, None, "hyperparameter depth: "),
        ({}, "", "channel 'train' has no file with data"),
    ],
)
def test_a_failure_has_the_text_of_xgboost_or_of_the_mistake(tmp_path, hyperparameters, train_text, words):
    text = failure(make_root(tmp_path, hyperparameters, train=train_text))
    assert words in text
    assert "Stack trace" not in text


def test_validation_data_of_another_width_is_refused(tmp_path):
    text = failure(make_root(tmp_path, {}, validation="1,2\n"))
    assert "channel 'validation' has 1 features, but channel 'train' has 3" in text


def test_the_tree_method_for_gpus_and_older_names_still_train(tmp_path):
    root = make_root(tmp_path, {"tree_method": "gpu_hist", "objective": "reg:linear", "silent": "0"})
    lines, output = train(root)
    assert len(lines) == 5
    assert "it gets hist and device cuda" in output
    assert "hyperparameter silent has no effect" in output
