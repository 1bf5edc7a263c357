"""The built-in XGBoost on two hosts, which are two processes with the real library."""

import json
import random
import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from needs import python_of

pytestmark = [pytest.mark.needs("xgboost"), pytest.mark.timeout(120)]

SOURCE = Path(__file__).resolve().parents[4] / "src"
CSV = {"ContentType": "text/csv", "TrainingInputMode": "File"}
EVALUATE = """
import sys, numpy, xgboost
rows = numpy.loadtxt(sys.argv[2], delimiter=",")
model = xgboost.Booster(model_file=sys.argv[1])
found = model.predict(xgboost.DMatrix(rows[:, 1:])) > 0.5
print(float((found == rows[:, 0]).mean()), model.num_boosted_rounds())
"""

# Joins as the host that xgboost sorts first, and sends a value whose unpickling makes a file.
STRANGER = """
import os, pathlib, socket, sys
from xgboost import collective
class Trap:
    def __reduce__(self):
        return pathlib.Path.touch, (pathlib.Path(sys.argv[2]),)
told = b""
while not told:
    try:
        with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
            told = connection.recv(8)
    except OSError:
        pass
collective.init(
    dmlc_communicator="rabit", dmlc_tracker_uri="127.0.0.1", dmlc_tracker_port=int(told), dmlc_task_id="aaa"
)
print("joined as rank", collective.get_rank(), flush=True)
collective.broadcast(Trap(), 0)
"""


def rows(num_rows, seed):
    """Return lines of CSV: the label says whether two of three features have a positive sum; a fifth are wrong."""
    source = random.Random(seed)
    lines = []
    for _ in range(num_rows):
        values = [round(source.uniform(-1, 1), 4) for _ in range(3)]
        lines.append(",".join(map(str, [int((values[0] + values[1] > 0) != (source.random() < 0.2)), *values])))
    return "\n".join(lines) + "\n"


class Hosts:
    """Folders like `/opt/ml` of two hosts, and their programs."""

    def __init__(self, folder, hyperparameters, *, train, validation=None, checkpoints=False):
        self.roots = [folder / "algo-1", folder / "algo-2"]
        self._processes = []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        channels = {"train": train} if validation is None else {"train": train, "validation": validation}
        for index, root in enumerate(self.roots):
            for name in ("model", "output", "input/config", *(f"input/data/{channel}" for channel in channels)):
                (root / name).mkdir(parents=True)
            for channel, texts in channels.items():
                if texts[index] is not None:
                    (root / f"input/data/{channel}/rows.csv").write_text(texts[index])
            documents = {
                "hyperparameters": {"objective": "binary:logistic", "num_round": "5", **hyperparameters},
                "inputdataconfig": dict.fromkeys(channels, CSV),
                "resourceconfig": {"hosts": ["algo-1", "algo-2"], "current_host": root.name},
            }
            if checkpoints:
                documents["checkpointconfig"] = {"LocalPath": str(root / "checkpoints")}
            for stem, document in documents.items():
                (root / f"input/config/{stem}.json").write_text(json.dumps(document))

    def start(self):
        variables = {
            "PYTHONPATH": str(SOURCE),
            "PATH": "/usr/bin:/bin",
            "SM_NUM_CPUS": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
        }
        self._processes = [
            subprocess.Popen(
                [str(python_of("xgboost")), "-m", "clary.train.boosting", str(root)],
                env=variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for root in self.roots
        ]
        return self._processes

    def stranger(self, made):
        """Start a program that is no host of the group, and sends a pickle that makes the file `made`."""
        arguments = [str(python_of("xgboost")), "-W", "ignore", "-c", STRANGER, str(self.port), str(made)]
        self._processes.append(subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        return self._processes[-1]

    def run(self):
        """Run both programs; return their output."""
        self.start()
        outputs = [process.communicate(timeout=60)[0] for process in self._processes]
        assert [process.returncode for process in self._processes] == [0, 0], outputs
        return outputs

    def kill(self):
        for process in self._processes:
            process.kill()
            process.communicate(timeout=10)


@pytest.fixture
def make_hosts(tmp_path):
    made = []

    def make(hyperparameters=None, **options):
        made.append(Hosts(tmp_path / str(len(made)), hyperparameters or {}, **options))
        return made[-1]

    yield make
    for hosts in made:
        hosts.kill()


def lines_of(output):
    return [line for line in output.splitlines() if line.startswith("[") and "#011" in line]


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_two_hosts_train_one_model_on_the_rows_of_both(make_hosts, tmp_path):
    parts = [rows(300, 1), rows(200, 2)]
    hosts = make_hosts({"eval_metric": "error,accuracy", "seed": "1"}, train=parts, validation=[rows(60, 3), None])
    first, second = hosts.run()
    lines = lines_of(first)
    assert [re.match(r"\[(\d)\]", line)[1] for line in lines] == ["0", "1", "2", "3", "4"]
    assert lines_of(second) == [], "one host alone prints the metrics"
    assert "validation: this host has no file of the channel" in second
    assert (files(hosts.roots[0] / "model"), files(hosts.roots[1] / "model")) == (["xgboost-model"], [])
    (tmp_path / "all.csv").write_text("".join(parts))
    arguments = [hosts.roots[0] / "model/xgboost-model", tmp_path / "all.csv"]
    done = subprocess.run(
        [python_of("xgboost"), "-W", "ignore", "-c", EVALUATE, *arguments], capture_output=True, text=True, check=True
    )
    accuracy, num_rounds = done.stdout.split()
    printed = {name: float(value) for name, value in re.findall(r"train-(\w+):([0-9.]+)", lines[-1])}
    assert num_rounds == "5"
    assert float(accuracy) > 0.8
    assert printed["accuracy"] == pytest.approx(float(accuracy), abs=1e-4), "the metric counts the rows of both hosts"
    assert printed["error"] == pytest.approx(1 - float(accuracy), abs=1e-4)


def test_checkpoints_of_the_first_host_are_resumed_on_both(make_hosts):
    hosts = make_hosts({"num_round": "3"}, train=[rows(200, 1), rows(200, 2)], checkpoints=True)
    hosts.run()
    assert files(hosts.roots[0] / "checkpoints") == [f"xgboost-checkpoint.{number}" for number in range(3)]
    assert files(hosts.roots[1] / "checkpoints") == []
    config = hosts.roots[0] / "input/config/hyperparameters.json"
    for root in hosts.roots:
        (root / "input/config/hyperparameters.json").write_text(config.read_text().replace('"3"', '"5"'))
    first, second = hosts.run()
    assert "resumed from the checkpoint of round 2" in first
    assert "resumed from the checkpoint of round 2" in second
    assert [line.split("#")[0] for line in lines_of(first)] == ["[3]", "[4]"]


def test_a_stranger_among_the_hosts_runs_no_code_in_them(make_hosts, tmp_path):
    """xgboost's tracker lets every client in that reaches it, and xgboost's own broadcast is a pickle."""
    hosts = make_hosts(train=[rows(200, 1), rows(200, 2)], checkpoints=True)
    first, second = hosts.start()
    second.kill()
    stranger = hosts.stranger(tmp_path / "trap")
    output, _ = stranger.communicate(timeout=60)
    assert "joined as rank 0" in output
    first.communicate(timeout=60)
    assert first.returncode != 0
    assert not (tmp_path / "trap").exists()


def test_hosts_that_are_stopped_end_after_the_same_round(make_hosts):
    settings = {"num_round": "1000000", "save_model_on_termination": "true", "max_depth": "1"}
    hosts = make_hosts(settings, train=[rows(200, 1), rows(200, 2)])
    first, second = hosts.start()
    seen = ""
    while "[3]#011" not in seen:
        seen = first.stdout.readline()
        assert seen, "the first host ended early"
    second.send_signal(signal.SIGTERM)  # one host alone has the signal
    first.communicate(timeout=30)
    second.communicate(timeout=30)
    assert (first.returncode, second.returncode) == (0, 0)
    assert files(hosts.roots[0] / "model") == ["xgboost-model"]


def test_a_host_with_a_mistake_ends_at_once_and_says_it(make_hosts):
    hosts = make_hosts(train=[rows(200, 1), "label,a,b,c\n1,2,3,4\n"])
    first, second = hosts.start()
    output, _ = second.communicate(timeout=30)
    assert second.returncode == 1
    assert "rows.csv is not CSV of numbers" in output
    assert "rows.csv is not CSV of numbers" in (hosts.roots[1] / "output/failure").read_text()
    assert first.poll() is None, "it was not ended by the first host, which still waits for it"


def test_no_rows_on_any_host_is_a_failure_of_both(make_hosts):
    hosts = make_hosts(train=[None, None])
    for process in hosts.start():
        output, _ = process.communicate(timeout=30)
        assert process.returncode == 1
        assert "channel 'train' has no file with data" in output


def test_a_booster_that_xgboost_trains_on_each_host_alone_is_refused(make_hosts):
    hosts = make_hosts({"booster": "gblinear"}, train=[rows(200, 1), rows(200, 2)])
    for process in hosts.start():
        output, _ = process.communicate(timeout=30)
        assert process.returncode == 1
        assert "the booster gblinear trains on one host, and this job has 2" in output


def test_a_port_that_is_taken_is_a_failure_that_ends_at_once(make_hosts):
    hosts = make_hosts(train=[rows(200, 1), rows(200, 2)])
    with socket.create_server(("127.0.0.1", hosts.port)):
        first, _ = hosts.start()
        output, _ = first.communicate(timeout=30)
    assert first.returncode == 1
    assert "Address already in use" in (hosts.roots[0] / "output/failure").read_text(), output
