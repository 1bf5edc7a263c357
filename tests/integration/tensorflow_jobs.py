"""Jobs of TensorFlow on two hosts, submitted by SDK v2's own estimator, and the same training in one process."""

import json
import subprocess
from contextlib import contextmanager

import pytest
from framework_jobs import PROGRAMS, digits_file
from running_service import SDK2_PYTHON, SETTINGS, start_service

from needs import python_of

PROGRAM = PROGRAMS / "tensorflow_digits.py"
_IMAGES = '"tensorflow-training:*" = "train"'


@contextmanager
def tensorflow_service(home):
    """Run a service that maps images of TensorFlow to the environment with TensorFlow."""
    assert _IMAGES in SETTINGS
    settings = SETTINGS.replace(_IMAGES, '"tensorflow-training:*" = "tensorflow"')
    service = start_service(home, settings + f'tensorflow = "{python_of("tensorflow")}"\n')
    try:
        yield service
    finally:
        service.clary("down", check=False)


def train_alone(folder, **options):
    """Train in one process without a job, and return its results."""
    folder.mkdir(exist_ok=True)
    command = [python_of("tensorflow"), PROGRAM, "--way", "alone", "--out", folder, "--data", digits_file().parent]
    command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    subprocess.run(command, check=True, timeout=120)
    return json.loads((folder / "rank-0.json").read_text())


def train_as_job(service, form, *pairs):
    """Train in a job that SDK v2 submits; return the job's name and the results of each rank."""
    _, facts = service.run_client(SDK2_PYTHON, "v2_tensorflow_training.py", form, str(PROGRAM), *pairs)
    found = {name: json.loads(text) for name, text in facts["ranks"].items()}
    return facts["name"], [found[f"rank-{rank}.json"] for rank in range(len(found))]


def check_same(found, alone, *, size):
    """Assert that every rank has the losses and weights of one process, and that all ranks agree."""
    assert [facts["rank"] for facts in found] == list(range(size))
    assert alone["losses"][-1] < 0.8 * alone["losses"][0]
    for facts in found:
        assert facts["size"] == size
        assert facts["losses"] == pytest.approx(alone["losses"], rel=1e-4)
        assert facts["weights"] == pytest.approx(alone["weights"], rel=1e-4)
        assert (facts["losses"], facts["weights"]) == (found[0]["losses"], found[0]["weights"])
