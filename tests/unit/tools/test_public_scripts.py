"""The runner of public scripts: its tables, its files from checkouts, its command lines, and its verdicts."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from tools.public_scripts import makers, outcomes, run_cells
from tools.public_scripts.checkouts import NotThere, bring
from tools.public_scripts.here import command_of, environment_of, run_here
from tools.public_scripts.jobs import EIGHT, FEW, FOUR, ONE, distribution_of, judge_job, request_of, settings
from tools.public_scripts.places import Places, python_of
from tools.public_scripts.table import ALONE, DISTRIBUTIONS, NOTEBOOK, Script, TableError, read_tables

COMMIT = "a" * 40
ENTRY = f"""
name = "one"
repository = "them/scripts"
commit = "{COMMIT}"
path = "deep/train.py"
environment = "train"
distribution = "smp"
shows = 'loss'
"""
LOG = """[rank1]: Traceback (most recent call last):
[rank1]: KeyError: 'SM_CHANNEL_TRAIN'
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""


def script(**members):
    given = {"name": "one", "repository": "them/scripts", "commit": COMMIT, "path": "deep/train.py"}
    return Script(**(given | {"environment": "train", "distribution": "smp", "shows": r"loss: \d"} | members))


def tables(tmp_path, text):
    (tmp_path / "one.toml").write_text(text)
    return read_tables(tmp_path)


def test_a_script_has_the_shared_members_of_its_file_and_its_own(tmp_path):
    shared = '[shared]\ndata = "mnist"\nranks = 2\n[shared.arguments]\nepochs = 1\nlr = 0.5\n'
    (read,) = tables(tmp_path, f"{shared}[[script]]{ENTRY}ranks = 8\narguments = {{ lr = 1.5 }}\n")
    assert (read.data, read.ranks, read.arguments) == ("mnist", 8, {"epochs": 1, "lr": 1.5})
    assert (read.source, read.entry) == ("deep", "train.py")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ENTRY + "colour = 1", "unknown are ['colour']"),
        (ENTRY.replace("path", "paths"), "missing are ['path']"),
        (ENTRY.replace(COMMIT, "main"), "commit is 'main', expected 40"),
        (ENTRY.replace('"smp"', '"horovod"'), "distribution is 'horovod', expected one of"),
        (ENTRY + 'launcher = "srun"', "expected one of torchrun, mpirun, horovodrun, python"),
        (ENTRY + 'framework = "jax"', "expected one of pytorch, tensorflow, mxnet"),
        (ENTRY + 'folder = "other"', "does not lie in other"),
        (ENTRY + "[[script]]" + ENTRY, "two scripts are called one"),
    ],
)
def test_a_table_that_cannot_be_run_gives_the_reason(tmp_path, text, words):
    with pytest.raises(TableError, match=re.escape(words)):
        tables(tmp_path, "[[script]]" + text)


def test_the_tables_of_the_project_are_valid_and_their_data_makers_exist():
    scripts = read_tables()
    assert len(scripts) >= 25
    for one in scripts:
        assert {one.data, *filter(None, [one.beside]), *one.buckets.values()} <= makers.MAKERS.keys()
        re.compile(one.shows)


@pytest.fixture
def checkouts(tmp_path):
    work = tmp_path / "checkouts/them/scripts"
    (work / "deep/data").mkdir(parents=True)
    (work / "deep/train.py").write_text("print('loss: 1')\n")
    (work / "deep/requirements.txt").write_text("torch==1.0\n")
    (work / "deep/data/big.bin").write_bytes(b"\0" * 10)
    git = ["git", "-C", str(work), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    (work / "deep/train.py").write_text("raise SystemExit('edited')\n")
    return tmp_path / "checkouts", commit


def test_a_folder_is_copied_as_of_the_commit_without_the_excluded_files(tmp_path, checkouts):
    folder, commit = checkouts
    bring(folder, script(commit=commit, without=["requirements.txt", "data"]), tmp_path / "brought")
    assert {str(one.relative_to(tmp_path / "brought")) for one in (tmp_path / "brought").rglob("*")} == {"train.py"}
    assert (tmp_path / "brought/train.py").read_text() == "print('loss: 1')\n"


@pytest.mark.parametrize(
    ("members", "words"),
    [({"repository": "them/others"}, "no them/others"), ({}, "fetch its history"), ({"path": "deep/no.py"}, "no.py")],
)
def test_a_missing_commit_or_path_of_the_checkouts_is_named(tmp_path, checkouts, members, words):
    folder, commit = checkouts
    given = {"commit": commit} | members if members else {}
    with pytest.raises(NotThere, match=words):
        bring(folder, script(**given), tmp_path / "brought")


def test_arguments_of_a_local_run_equal_those_of_the_job(tmp_path):
    one = script(arguments={"data-dir": "{data}", "m": "{model}", "empty": ""}, parameters={"ddp": True}, ranks=2)
    places = Places("/s", "/d", "/m", "/c")
    command = command_of(one, tmp_path / "python", places)
    assert command[:2] == ["run", "--cuda-on-cpu"]
    assert command[command.index("train.py") :] == ["train.py", "--data-dir", "/d", "-m", "/m", "--empty"]
    told = environment_of(one, tmp_path / "python", places, tmp_path)
    assert json.loads(told["SM_HP_MP_PARAMETERS"]) == {"ddp": True}
    assert (told["SM_CHANNEL_TRAINING"], told["SM_MODEL_DIR"]) == ("/d", "/m")
    request = request_of(one, Path("/s"), Path("/d"), 180.0)
    assert request["hyperparameters"] == {"data-dir": "/opt/ml/input/data/training", "m": "/opt/ml/model", "empty": ""}
    assert request["environment"]["CLARY_CUDA_ON_CPU"] == "1"
    assert json.loads(told["SM_FRAMEWORK_PARAMS"])["sagemaker_mpi_enabled"]


@pytest.mark.parametrize(
    ("launcher", "words"),
    [("mpirun", ["mpirun", "--allow-run-as-root"]), ("horovodrun", ["horovodrun", "-np", "2"]), ("python", [])],
)
def test_a_script_without_cuda_is_started_by_its_own_launcher(tmp_path, launcher, words):
    one = script(launcher=launcher, cuda=False, framework="tensorflow", hosts=2)
    command = command_of(one, tmp_path / "python", Places("/s", "/d", "/m", "/c"))
    assert command[1 : 1 + len(words)] == words
    assert command[-2:] == [str(tmp_path / "python"), "train.py"]
    request = request_of(one, Path("/s"), Path("/d"), 180.0)
    assert (request["framework"], request["hosts"]) == ("tensorflow", 2)
    assert "CLARY_CUDA_ON_CPU" not in request["environment"]


def test_scripts_with_several_hosts_servers_or_a_client_run_only_as_a_job():
    kinds = [{"hosts": 2}, *({"distribution": kind} for kind in ("parameter_server", "notebook"))]
    assert not any(script(**members).runs_here for members in kinds)
    assert script().runs_here


@pytest.mark.parametrize(("ranks", "instance_type"), [(1, ONE), (2, FEW), (4, FOUR), (8, EIGHT)])
def test_the_instance_type_has_the_ranks_and_the_job_name_has_no_dots(tmp_path, ranks, instance_type):
    request = request_of(script(name="one-2.5", ranks=ranks), Path("/s"), Path("/d"), 180.0)
    assert (request["instance_type"], request["name"]) == (instance_type, "one-2-5")
    assert f'[instance_types."{instance_type}"]\nprocesses = {ranks}\n' in settings({"train"}, tmp_path)


@pytest.mark.parametrize("kind", [kind for kind in DISTRIBUTIONS if kind not in (ALONE, NOTEBOOK)])
def test_each_distribution_is_known_to_the_estimator(kind):
    told = distribution_of(script(distribution=kind, parameters={"ddp": True}))
    assert told.keys() <= {"smdistributed", *DISTRIBUTIONS}
    assert ("mpi" in told) == (kind in ("smp", "mpi"))


def test_a_service_has_an_image_and_an_interpreter_for_each_environment(tmp_path):
    told = settings({"train"}, tmp_path)
    assert '"public/train:*" = "train"' in told
    assert "tensorflow-training" not in told
    assert str(python_of("train", tmp_path)) in told


def test_a_missing_environment_is_named(tmp_path):
    with pytest.raises(LookupError, match="no environment nowhere"):
        python_of("nowhere", tmp_path)


@pytest.mark.parametrize(
    ("said", "code", "result", "words"),
    [
        ("loss: 3", 0, outcomes.RAN, ""),
        ("nothing", 0, outcomes.FAILED, "nothing that it printed"),
        (LOG, 1, outcomes.FAILED, "KeyError: 'SM_CHANNEL_TRAIN'"),
        ("no words", 3, outcomes.FAILED, "ended with 3"),
        ("loss: 3", None, outcomes.TOO_LONG, ""),
    ],
)
def test_a_run_is_judged_by_its_exit_code_and_its_output(said, code, result, words):
    found = outcomes.judge(script(), "here", said=said, code=code, seconds=1.0)
    assert found.result == result
    assert words in found.reason


def test_a_job_is_judged_by_its_status_and_its_output():
    def judged(status, reason="", said="loss: 3"):
        line = json.dumps({"name": "j", "status": status, "reason": reason})
        return judge_job(script(), said=f"{said}\nJOB {line}\n", code=0, seconds=1.0)

    assert judged("Completed").result == outcomes.RAN
    assert judged("Completed", said="nothing").result == outcomes.FAILED
    assert judged("Failed", "AlgorithmError: it died", said="").reason == "AlgorithmError: it died"
    assert judged("Failed", "AlgorithmError: it died", said=LOG).reason == "KeyError: 'SM_CHANNEL_TRAIN'"
    assert judged("Stopped", "MaxRuntimeExceeded").result == outcomes.TOO_LONG
    assert judge_job(script(), said="ValueError: no region", code=1, seconds=1.0).reason == "ValueError: no region"


def test_files_and_configurations_are_counted_separately(tmp_path):
    scripts = [script(), script(name="two"), script(name="three", path="deep/other.py", note="theirs")]
    found = {(one.name, "a"): outcomes.Outcome(one.name, "a", outcomes.RAN, 1.0) for one in scripts}
    found["one", "b"] = outcomes.Outcome("one", "b", outcomes.FAILED, 2.0, "KeyError: a|b")
    outcomes.write(tmp_path / "o/outcomes.jsonl", found.values())
    assert outcomes.read(tmp_path / "o/outcomes.jsonl") == found
    page = outcomes.markdown([*scripts, script(name="four", note="theirs")], found, ["a", "b"])
    assert "- four: them/scripts, `deep/train.py` (theirs)" in page
    assert "| a | 3 | 3 | 2 | 2 |" in page
    assert "| b | 1 | 0 | 1 | 0 |" in page
    assert "| failed | 2 | KeyError: a\\|b |" in page


def test_a_program_that_does_not_end_is_killed_at_its_deadline(tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "stuck.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    clary = tmp_path / "clary"  # replaces an interpreter that has Clary
    clary.write_text(f"#!/bin/sh\nexec {sys.executable} {tmp_path / 'stuck.py'}\n")
    clary.chmod(0o755)
    found = run_here(
        script(),
        clary=clary,
        python=Path(sys.executable),
        source=tmp_path / "source",
        data=tmp_path,
        scratch=tmp_path / "run",
        deadline_s=3.0,
    )
    assert found.result == outcomes.TOO_LONG
    assert (tmp_path / "run/said.txt").read_text() == "begun\n"


def test_makers_write_the_files_that_the_scripts_read(tmp_path):
    for name, make in makers.MAKERS.items():
        if name == "wiki":  # needs h5py, which only the environment of its scripts has
            continue
        (tmp_path / name).mkdir()
        make(tmp_path / name)
    images = (tmp_path / "mnist/MNIST/raw/train-images-idx3-ubyte").read_bytes()
    assert len(images) == 16 + makers.NUM_IMAGES * makers.SIDE**2
    assert len(list((tmp_path / "tokens").glob("*train*.json.gz"))) == 1
    assert any((tmp_path / "none").iterdir())
    for name, side in (("keras_mnist", makers.SIDE), ("keras_mnist_small", makers.SMALL)):
        with np.load(tmp_path / name / ".keras/datasets/mnist-1.npz") as file:
            assert file["x_train"].shape == (makers.NUM_MANY, side, side)
            assert file["y_test"].shape == (makers.NUM_TEST_IMAGES,)
    assert np.load(tmp_path / "mnist_data/train_data.npy").shape == (makers.NUM_MANY, makers.SIDE**2)
    with zipfile.ZipFile(tmp_path / "mnist_zip/data-1/mnist.zip") as file:
        assert "t10k-labels-idx1-ubyte" in file.namelist()


CELLS = """
class tuner:
    fit = wait = staticmethod(lambda *_: None)
    analytics = staticmethod(lambda: type("rows", (), {"dataframe": staticmethod(lambda: [1, 2])}))
    describe = staticmethod(lambda: {"HyperParameterTuningJobStatus": "Completed", "TrainingJobStatusCounters": {}})
"""
STUB = """
import types

class client:
    meta = types.SimpleNamespace(region_name="mars-1")
    exceptions = types.SimpleNamespace(BucketAlreadyOwnedByYou=KeyError)
    create_bucket = staticmethod(lambda Bucket: print("bucket", Bucket))
    upload_file = staticmethod(lambda file, bucket, key: print("file", bucket, key))
    def __init__(self, name): assert name == "s3"
"""


def test_cells_of_a_notebook_are_run_up_to_the_tuning_job(tmp_path):
    cells = ["!cat train.py", "%matplotlib inline", CELLS, "tuner.fit()", "raise SystemExit('too far')"]
    told = [{"cell_type": "markdown", "source": ["no code ("]}]
    told += [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells]
    (tmp_path / "one.ipynb").write_text(json.dumps({"cells": told}))
    (tmp_path / "boto3.py").write_text(STUB)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/images.gz").write_bytes(b"")
    (tmp_path / "buckets.json").write_text(json.dumps({"samples-{region}/digits": str(tmp_path / "data")}))
    done = subprocess.run(
        [sys.executable, run_cells.__file__, tmp_path / "one.ipynb", tmp_path / "buckets.json"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[:2] == ["bucket samples-mars-1", "file samples-mars-1 digits/images.gz"]
    facts = json.loads(done.stdout.splitlines()[-1].removeprefix("TUNING "))
    assert facts == {"status": "Completed", "trials": {}, "rows": 2, "best": None}
