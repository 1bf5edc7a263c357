"""Notes of a job's start on things that the SDKs' drivers will miss or miscount."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from clary.agent.environments import sdk_drivers
from clary.agent.environments.sdk_drivers import driver_notes
from clary.contract.launch_plan import Channel
from clary.contract.ml_tree import MlTree
from clary.testing.launch_plans import make_hosts, make_plan

PLAIN = "check_python\n$SM_PYTHON_CMD /opt/ml/input/data/sm_drivers/distributed_drivers/basic_script_driver.py\n"
INSTALLING = f"{PLAIN}$SM_PYTHON_CMD /opt/ml/input/data/sm_drivers/scripts/install_requirements.py requirements.txt\n"
MPI = "check_python\n$SM_PYTHON_CMD /opt/ml/input/data/sm_drivers/distributed_drivers/mpi_driver.py\n"
DEPENDENCIES = ("--dependency_settings", '{"dependency_file": "requirements.txt"}')
NONE = ("--dependency_settings", '{"dependency_file": null}')


class FakeMachine:
    """An environment with a `python` that finds the modules of a list, and a folder of programs."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tree = MlTree(folder / "ml")
        self.python = folder / "env" / "bin" / "python"
        self.programs = folder / "programs"
        self.sshd = folder / "sshd"
        for place in (self.python.parent, self.programs, self.tree.channel("sm_drivers")):
            place.mkdir(parents=True)
        monkeypatch.setattr(sdk_drivers, "SSHD", str(self.sshd))
        self.find()

    def find(self, *modules: str) -> None:
        """Let the interpreter find `modules`; it counts its starts."""
        known = "|".join((*modules, "nothing"))
        words = f'shift 4; for m; do case $m in {known}) ;; *) printf "%s " "$m" ;; esac; done'
        self.python.write_text(f"#!/bin/sh\necho x >> {self.python}.starts\n{words}\n")
        self.python.chmod(0o755)

    def install(self, module: str) -> None:
        folder = self.python.parent.parent / "lib" / "python3.12" / "site-packages" / module
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()

    def put(self, *names: str) -> None:
        for name in names:
            (self.programs / name).write_text("#!/bin/sh\n")
            (self.programs / name).chmod(0o755)

    @property
    def num_starts(self) -> int:
        starts = Path(f"{self.python}.starts")
        return len(starts.read_text().split()) if starts.exists() else 0

    def notes(self, *channels: str, command: tuple[str, ...] | None = ("sh",), **host: object) -> tuple[str, ...]:
        given = [Channel(name=name, s3_uri=f"s3://b/{name}") for name in channels]
        (one,) = make_hosts(1)
        one = replace(one, resources=replace(one.resources, **host))
        plan = make_plan(hosts=(one,), channels=given, command=command)
        return driver_notes(plan, one, self.tree, python=str(self.python), path=str(self.programs))

    def trainer_notes(self, script: str) -> tuple[str, ...]:
        (self.tree.channel("sm_drivers") / "sm_train.sh").write_text(script)
        return self.notes("sm_drivers", "code")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    return FakeMachine(tmp_path, monkeypatch)


def test_a_script_that_ends_without_pip_is_told_of(machine: FakeMachine) -> None:
    (note,) = machine.trainer_notes(PLAIN)
    assert note.startswith("sm_train.sh of the SDK ends at once, without a message, because PATH has no pip")
    assert note.endswith(f"else uv pip install --python {machine.python} pip")
    machine.put("pip3")
    assert machine.trainer_notes(PLAIN) == ()
    assert machine.num_starts == 0


def test_requirements_need_pip_in_the_environment_itself(machine: FakeMachine) -> None:
    machine.put("pip")  # of the machine
    for script in (INSTALLING, PLAIN + "$SM_PIP_CMD install -r requirements.txt\n"):
        (note,) = machine.trainer_notes(script)
        assert note.startswith(f"the job's requirements cannot be installed, because {machine.python} has no pip: ")
    machine.find("pip")
    assert machine.trainer_notes(INSTALLING) == ()
    num_starts = machine.num_starts
    machine.install("pip")
    assert machine.trainer_notes(INSTALLING) == ()
    assert machine.num_starts == num_starts  # the environment's own folder is enough


def test_mpi_names_everything_that_its_driver_needs_on_one_host_too(machine: FakeMachine) -> None:
    machine.put("pip")
    modules, mpirun, sshd = machine.trainer_notes(MPI)
    assert f"{machine.python} has no paramiko and no mpi4py: uv pip install" in modules
    assert "PATH has no mpirun" in mpirun
    assert f"it starts {machine.sshd} even on one host" in sshd
    machine.put("mpirun")
    machine.sshd.touch()
    machine.install("mpi4py")
    (modules,) = machine.trainer_notes(MPI)
    assert modules == (
        f"the SDK's MPI driver will fail: {machine.python} has no paramiko: "
        f"uv pip install --python {machine.python} paramiko"
    )
    machine.find("pip")
    (modules,) = machine.trainer_notes(MPI + INSTALLING)
    assert "will fail unless the job's requirements bring them: " in modules
    machine.install("paramiko")
    assert machine.trainer_notes(MPI) == ()


@pytest.mark.parametrize(
    ("words", "is_noted"),
    [
        (DEPENDENCIES, True),
        (NONE, False),
        ((), False),
        ((*DEPENDENCIES, "--job_conda_env", "mine"), False),
        (("--dependency_settings", '{"dependency_file": "env_snapshot.yml"}'), False),
        (("--dependency_settings", "[1]"), False),
        (("--dependency_settings",), False),
    ],
)
def test_dependencies_of_remote_functions_need_pip(
    machine: FakeMachine, words: tuple[str, ...], is_noted: bool
) -> None:
    notes = machine.notes("sagemaker_remote_function_bootstrap", command=("bash", "job_driver.sh", *words))
    assert len(notes) == is_noted
    if is_noted:
        assert notes[0].startswith(f"@remote's dependencies cannot be installed, because {machine.python} has no pip")


def test_ranks_of_remote_functions_on_a_share_of_the_machines_processors(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    told: Callable[..., tuple[str, ...]] = lambda *words, **host: machine.notes(  # noqa: E731
        "sagemaker_remote_function_bootstrap", command=("bash", "job_driver.sh", *words), **host
    )
    torchrun = ("--distribution", "torchrun")
    (note,) = told(*torchrun, num_cpus=2.5)
    assert "starts 16 ranks on this host, one for each processor of the machine, but the host has 2.5: set " in note
    assert note.endswith("set nproc_per_node=2")
    assert told(*torchrun, "--user_nproc_per_node", "2", num_cpus=2) == ()
    assert told(*torchrun, num_cpus=16) == ()
    assert told(*torchrun, num_cpus=2, gpu_indices=(0,)) == ()
    assert told(num_cpus=2) == ()


@pytest.mark.parametrize("words", [(), DEPENDENCIES])
def test_mpirun_of_remote_functions_names_what_its_driver_needs(machine: FakeMachine, words: tuple[str, ...]) -> None:
    told: Callable[[str], tuple[str, ...]] = lambda distribution: machine.notes(  # noqa: E731
        "sagemaker_remote_function_bootstrap",
        command=("bash", "job_driver.sh", "--distribution", distribution, "--user_nproc_per_node", "2", *words),
    )
    machine.find("pip")
    modules, mpirun, sshd = told("mpirun")
    until = " unless the job's requirements bring them" if words else ""
    assert modules.startswith(f"@remote's MPI driver will fail{until}: {machine.python} has no paramiko and no mpi4py")
    assert "PATH has no mpirun" in mpirun
    assert f"it starts {machine.sshd} even on one host" in sshd
    assert told("torchrun") == ()
    machine.put("mpirun")
    machine.sshd.touch()
    machine.find("pip", "paramiko", "mpi4py")
    assert told("mpirun") == ()


def test_other_jobs_are_not_looked_at(machine: FakeMachine) -> None:
    (machine.tree.channel("sm_drivers") / "sm_train.sh").write_text(MPI)
    assert machine.notes("sm_drivers", command=None) == ()
    assert machine.notes("training", command=("train.sh", *DEPENDENCIES)) == ()
    (machine.tree.channel("sm_drivers") / "sm_train.sh").unlink()
    assert machine.notes("sm_drivers") == ()
    assert machine.num_starts == 0


def test_an_interpreter_that_does_not_answer_gives_no_note(machine: FakeMachine) -> None:
    machine.put("pip")
    machine.python.write_text("#!/bin/sh\nexit 1\n")
    assert machine.trainer_notes(INSTALLING) == ()
    machine.python.unlink()
    assert machine.trainer_notes(INSTALLING) == ()


@pytest.mark.parametrize("sdk", ["sdk3", "sdk2"])
def test_the_words_are_those_of_the_sdks(sdk: str) -> None:
    packages = sorted((Path(__file__).parents[4] / ".venvs" / sdk).glob("lib/python*/site-packages/sagemaker"))
    if not packages:
        pytest.skip(f"needs the SDK: make .venvs/{sdk}.stamp")
    (folder,) = packages
    trainer = folder / ("train" if sdk == "sdk3" else "modules")
    texts = "\n".join(path.read_text() for path in trainer.rglob("*.py"))
    for words in ("check_python", sdk_drivers._INSTALLS[sdk == "sdk2"], sdk_drivers._MPI_DRIVER, "import paramiko"):
        assert words in texts, words
    remote = (folder / ("core" if sdk == "sdk3" else "") / "remote_function" / "job.py").read_text()
    for words in (sdk_drivers.REMOTE_CHANNEL, sdk_drivers._DEPENDENCIES, sdk_drivers._RANKS, sdk_drivers._CONDA):
        assert json.dumps(words) in remote, words
    assert '["--distribution", "torchrun"]' in remote
    assert '["--distribution", "mpirun"]' in remote
    scripts = folder / ("core" if sdk == "sdk3" else "") / "remote_function" / "runtime_environment"
    driver = (scripts / "mpi_utils_remote.py").read_text()
    assert "import paramiko" in driver
    assert '"/usr/sbin/sshd"' in driver
