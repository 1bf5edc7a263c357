"""Notes on things that the SDKs' drivers will miss or miscount on a host: pip, MPI's programs, processors.

Where: the supervisor adds them to the log when it plans a program with a command. The drivers are scripts in channels
of the job: `sm_drivers` of ModelTrainer, `sagemaker_remote_function_bootstrap` of @remote. Only their text is read, and
only the image's own environment is asked: jobs with a command run in no other.
Source: SDK 3.27 `train.templates`, `container_drivers`, `remote_function.runtime_environment`; SDK 2.257.7 `modules`.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from clary.agent.host.ssh_access import SSHD
from clary.agent.small_files import read_start
from clary.base.hookless_python import hookless_command
from clary.base.limited_runs import RunTooLong, run_limited
from clary.contract.launch_plan import HostPlan, LaunchPlan
from clary.contract.ml_tree import MlTree

TRAINER_CHANNEL = "sm_drivers"  # of SDK v3's ModelTrainer and of v2's modules.train
REMOTE_CHANNEL = "sagemaker_remote_function_bootstrap"
_SCRIPT = "sm_train.sh"
_MAX_BYTES = 256 * 1024
_INSTALLS = ("install_requirements.py", "$SM_PIP_CMD install")  # of SDK v3 and v2
_MPI_DRIVER = "mpi_driver.py"
_TRAINER_DRIVER, _REMOTE_DRIVER = "the SDK's MPI driver", "@remote's MPI driver"  # as notes name them
_MPI_MODULES = ("paramiko", "mpi4py")
_DEPENDENCIES, _DISTRIBUTION, _RANKS, _CONDA = (
    "--dependency_settings",
    "--distribution",
    "--user_nproc_per_node",
    "--job_conda_env",
)
_ASK_LIMIT_S = 20.0
_FIND = "import importlib.util as u, sys; print(*[m for m in sys.argv[1:] if u.find_spec(m) is None])"

logger = logging.getLogger(__name__)


def driver_notes(plan: LaunchPlan, host: HostPlan, tree: MlTree, *, python: str, path: str) -> tuple[str, ...]:
    """Return a sentence on each thing that a driver of the SDKs will miss or miscount on this host.

    Args:
        plan: the attempt.
        host: on which the program will run.
        tree: of the host, as the agent sees it, with its channels.
        python: interpreter of the program's environment, which must be the image's own.
        path: PATH of the program.
    """
    if plan.command is None:
        return ()
    names = {channel.name for channel in plan.channels}
    found: list[str] = []
    if TRAINER_CHANNEL in names:
        found += _trainer_notes(tree, python=python, path=path)
    if REMOTE_CHANNEL in names:
        found += _remote_notes(plan.command, host, python=python, path=path)
    return tuple(found)


def _trainer_notes(tree: MlTree, *, python: str, path: str) -> Iterator[str]:
    place = (tree.channel(TRAINER_CHANNEL) / _SCRIPT).relative_to(tree.root)
    script = (read_start(tree.root, place.parts, max_bytes=_MAX_BYTES) or b"").decode(errors="replace")
    installs = any(words in script for words in _INSTALLS)
    if "check_python" in script and not any(shutil.which(name, path=path) for name in ("pip3", "pip")):
        yield f"{_SCRIPT} of the SDK ends at once, without a message, because PATH has no pip: {_remedy(python)}"
    elif installs and _missing(python, ["pip"]):
        yield f"the job's requirements cannot be installed, because {python} has no pip: {_remedy(python)}"
    if _MPI_DRIVER not in script:
        return
    yield from _mpi_notes(_TRAINER_DRIVER, python=python, path=path, installs=installs)


def _mpi_notes(driver: str, *, python: str, path: str, installs: bool) -> Iterator[str]:
    lacks = _missing(python, _MPI_MODULES)
    if lacks:
        told = " unless the job's requirements bring them" if installs else ""
        words = f"uv pip install --python {python} {' '.join(lacks)}"
        yield f"{driver} will fail{told}: {python} has no {' and no '.join(lacks)}: {words}"
    if shutil.which("mpirun", path=path) is None:
        yield f"{driver} will fail: PATH has no mpirun; install Open MPI on the machine (openmpi-bin)"
    if not os.path.exists(SSHD):
        yield (
            f"{driver} will fail: it starts {SSHD} even on one host, and there is none; install "
            "openssh-server on the machine"
        )


def _remote_notes(command: Sequence[str], host: HostPlan, *, python: str, path: str) -> Iterator[str]:
    installs = _names_dependencies(command)
    if installs and _CONDA not in command and _missing(python, ["pip"]):
        yield f"@remote's dependencies cannot be installed, because {python} has no pip: {_remedy(python)}"
    num_cpus = os.cpu_count() or 1
    starts_ranks = _DISTRIBUTION in command and _RANKS not in command
    if starts_ranks and not host.resources.gpu_indices and host.resources.num_cpus < num_cpus:
        yield (
            f"@remote's driver starts {num_cpus} ranks on this host, one for each processor of the machine, but the "
            f"host has {host.resources.num_cpus:g}: set nproc_per_node={max(1, int(host.resources.num_cpus))}"
        )
    if _argument(command, _DISTRIBUTION) == "mpirun":
        yield from _mpi_notes(_REMOTE_DRIVER, python=python, path=path, installs=installs)


def _argument(command: Sequence[str], name: str) -> str:
    """Return the value after an argument's name, or "" without one."""
    return next((value for word, value in itertools.pairwise(command) if word == name), "")


def _names_dependencies(command: Sequence[str]) -> bool:
    try:
        settings = json.loads(command[command.index(_DEPENDENCIES) + 1])
    except (ValueError, IndexError):  # no such argument, or none of this form
        return False
    # conda reads other files
    return isinstance(settings, dict) and str(settings.get("dependency_file") or "").endswith(".txt")


def _remedy(python: str) -> str:
    return f"run `clary environments add` again if it made this environment, else uv pip install --python {python} pip"


def _missing(python: str, modules: Sequence[str]) -> list[str]:
    """Return the modules that the interpreter does not find; an empty list if it does not answer.

    The interpreter is asked only about modules that its own folder of packages lacks: its start takes 0.1 s.
    """
    library = Path(python).parent.parent / "lib"
    absent = [name for name in modules if not any(library.glob(f"python*/site-packages/{name}/__init__.py"))]
    if not absent:
        return []
    try:
        done = run_limited(hookless_command(python, _FIND, *absent), limit_s=_ASK_LIMIT_S)
    except (OSError, RunTooLong) as error:
        logger.info("%s could not be asked for %s: %s", python, ", ".join(absent), error)
        return []
    return done.output.split() if done.code == 0 else []
