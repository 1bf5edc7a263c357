"""`Environment()` and `training_env()` give the values of AWS's packages in the same folder, and our host's share."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from needs import python_of

ROOT = Path(__file__).resolve().parents[4]
COMPAT = ROOT / "src/clary/compat"
PROGRAM = Path(__file__).with_name("values_program.py")
ASSETS = ROOT / "tests" / "assets"
GOLDENS = ASSETS / "sm_variables"
TOOLKIT_GOLDENS = sorted(path.stem for path in GOLDENS.glob("*.json") if not path.stem.startswith("v3-"))
SAMPLES = runpy.run_path(str(GOLDENS / "generate.py"))


def values(folder: Path, package: str, *, python: str = sys.executable, library: Path | None = COMPAT) -> dict:
    """Return the values that the package from the folder `library` gives for the sample jobs."""
    folder.mkdir()
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(library or "")}
    done = subprocess.run(
        [python, PROGRAM, folder, package], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(COMPAT), **variables}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def write_job(folder: Path, resources: dict, inputs: dict, hyperparameters: dict) -> Path:
    config = folder / "input" / "config"
    config.mkdir(parents=True)
    documents = {"resourceconfig": resources, "inputdataconfig": inputs, "hyperparameters": hyperparameters}
    for stem, document in documents.items():
        (config / f"{stem}.json").write_text(json.dumps(document))
    return folder


@pytest.mark.needs("toolkit")
def test_every_value_equals_that_of_the_toolkit_in_the_same_folder(tmp_path):
    theirs = values(tmp_path / "theirs", "training", python=str(python_of("toolkit")), library=None)
    ours = values(tmp_path / "ours", "training")
    assert len(theirs) > len(TOOLKIT_GOLDENS)
    for name, said in theirs.items():
        assert ours[name] == said, name


def test_every_value_equals_that_of_the_older_containers(tmp_path):
    theirs = json.loads((ASSETS / "containers_values" / "values.json").read_text())
    ours = values(tmp_path / "ours", "containers")
    assert sorted(ours) == sorted(theirs)
    for name, said in theirs.items():
        assert ours[name] == said, name


@pytest.mark.parametrize("name", TOOLKIT_GOLDENS)
def test_the_variables_equal_those_of_the_toolkit(name, tmp_path):
    golden = json.loads((GOLDENS / f"{name}.json").read_text())
    facts = golden["job"]
    base = write_job(tmp_path / "ml", *SAMPLES["documents"](facts), facts["hyperparameters"])
    done = run(
        "import json; from sagemaker_training.environment import Environment\n"
        "print(json.dumps(Environment().to_env_vars()))",
        SAGEMAKER_BASE_DIR=str(base),
        TRAINING_JOB_NAME="job-1",
        SM_NUM_GPUS=str(facts["num_gpus"]),
        SM_NUM_CPUS=str(facts["num_cpus"]),
        **{**facts["environment"], "PATH": f"{SAMPLES['SHIMS']}:{os.environ['PATH']}"},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.replace(str(base), "/opt/ml")) == golden["variables"]


def test_the_hosts_share_counts_where_several_hosts_share_a_machine(tmp_path):
    base = write_job(tmp_path / "ml", {"current_host": "algo-1", "hosts": ["algo-1"]}, {}, {"a": "1"})
    code = "from sagemaker_training import environment as e; v = e.Environment(); print(v.num_cpus, v.num_gpus)"
    done = run(code, SAGEMAKER_BASE_DIR=str(base), SM_NUM_CPUS="777", SM_NUM_GPUS="5")
    assert done.stdout == "777 5\n", done.stderr


def test_what_the_job_has_set_stays_where_no_parameter_says_more(tmp_path):
    base = write_job(tmp_path / "ml", {"current_host": "algo-1", "hosts": ["algo-1"]}, {}, {})
    code = (
        "import os; from sagemaker_training import environment as e; e.Environment()\n"
        "print(os.environ['SAGEMAKER_JOB_NAME'], os.environ['SAGEMAKER_REGION'])"
    )
    variables = {"SAGEMAKER_JOB_NAME": "job-1", "SAGEMAKER_REGION": "us-west-2"}
    done = run(code, SAGEMAKER_BASE_DIR=str(base), **variables)
    assert done.stdout == "job-1 us-west-2\n", done.stderr


def test_documents_that_are_given_are_not_read():
    code = (
        "from sagemaker_training.environment import Environment\n"
        "e = Environment({'current_host': 'a', 'hosts': ['a', 'b']}, {'train': {}}, {'sagemaker_program': 'x.py'})\n"
        "print(e.hosts, e.channel_input_dirs, e.module_name, e.current_instance_group, e.is_master)"
    )
    done = run(code, SAGEMAKER_BASE_DIR="/nowhere")
    assert done.stdout == "['a', 'b'] {'train': '/nowhere/input/data/train'} x homogeneousCluster True\n", done.stderr


def test_a_folder_without_a_description_is_refused_with_what_to_do():
    done = run("import sagemaker_containers as s; s.training_env()", SAGEMAKER_BASE_DIR="/nowhere")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("FileNotFoundError: ")
    assert "set SAGEMAKER_BASE_DIR to a folder that has hyperparameters.json" in last
    assert "'/nowhere/input/config/resourceconfig.json'" in last


@pytest.mark.skipif(Path("/opt/ml").exists(), reason="this machine has /opt/ml")
def test_outside_of_jobs_the_first_use_makes_an_empty_job_in_the_home_folder(tmp_path):
    done = run("import sagemaker_training.environment, sagemaker_containers.beta.framework", HOME=str(tmp_path))
    assert (done.returncode, done.stderr, list(tmp_path.iterdir())) == (0, "", [])
    code = (
        "import os; from sagemaker_training import environment as e\n"
        "v = e.Environment(); print(e.model_dir == v.model_dir, v.hosts == [v.current_host], v.hyperparameters)\n"
        "print(os.path.isdir(v.model_dir), os.path.isdir(v.output_data_dir), os.environ['SAGEMAKER_BASE_DIR'])"
    )
    done = run(code, HOME=str(tmp_path))
    (base,) = tmp_path.glob("sagemaker_local/jobs/*/opt/ml")
    assert done.stdout == f"True True {{}}\nTrue True {base}\n", done.stderr
    assert str(base) in done.stderr


def test_variables_can_be_written_for_programs_that_the_script_starts():
    code = (
        "import os, sys; from sagemaker_training import environment as e\n"
        "given = {'A': 'b'}; e.write_env_vars(given); print(os.environ['A'], given)\n"
        "print(os.environ['PYTHONPATH'] == ':'.join(sys.path))"
    )
    assert run(code).stdout == "b {'A': 'b'}\nTrue\n"


def test_a_trial_of_tensorflow_reads_the_model_dir_of_its_own(tmp_path):
    parameters = {"model_dir": "s3://b/m", "_tuning_objective_metric": "loss", "epochs": 3}
    job = write_job(tmp_path / "ml", {"current_host": "algo-1", "hosts": ["algo-1"]}, {}, parameters)
    code = (
        "from sagemaker_training import environment\n"
        "env = environment.Environment()\n"
        "print(env.hyperparameters['model_dir'], env.to_cmd_args(), environment.read_hyperparameters()['model_dir'])"
    )
    variables = {"SAGEMAKER_BASE_DIR": str(job), "TRAINING_JOB_NAME": "trial-1"}
    own = run(code, **variables, SM_HP_MODEL_DIR="s3://b/m/trial-1/model")
    assert own.stdout.split()[0] == "s3://b/m/trial-1/model", own.stderr
    assert own.stdout.split()[-1] == "s3://b/m"
    assert "'s3://b/m/trial-1/model'" in own.stdout
    other = run(code, **variables, SM_HP_MODEL_DIR="/elsewhere")
    assert other.stdout.split()[0] == "s3://b/m", other.stderr
