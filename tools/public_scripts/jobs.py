"""Runs a script as an estimator job: SDK v2, against a service that is started for it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Self

from tools.public_scripts.outcomes import FAILED, TOO_LONG, Outcome, judge, last_error
from tools.public_scripts.places import CLIENT_PYTHON, ROOT, Places, python_of
from tools.public_scripts.table import ALONE, DDP, MIRRORED, MPI, NOTEBOOK, SERVERS, SMDDP, SMP, TORCHRUN, TSM, Script

WAY = "estimator"
UP_TIMEOUT_S = 180
AFTER_S = 60  # a job's own deadline passes first, and its log is read to the end
EIGHT, FOUR, FEW = "ml.p4d.24xlarge", "ml.p3.8xlarge", "ml.p3.16xlarge"  # FEW: a type that the SDK takes for SMDDP
ONE = "ml.c5.xlarge"
TYPES = {8: EIGHT, 4: FOUR, 2: FEW, 1: ONE}  # of ranks; the settings say them
AWS_IMAGES = (("pytorch", "torch"), ("tensorflow", "keras2"), ("mxnet", "mxnet"))  # of notebooks
ML = Path("/opt/ml")
IN_JOBS = Places(str(ML / "code"), "", str(ML / "model"), str(ML / "checkpoints"))


class Service:
    """A service of our own, with an image for each environment.

    Where: used as a context; the service and all that it has started are ended behind it, and its state removed before.
    Args:
        clary: interpreter that has Clary.
        own: folder of environments that were made for scripts.
    """

    def __init__(self, home: Path, environments: set[str], *, clary: Path, own: Path) -> None:
        self.environment: dict[str, str] = {}
        self._clary_python = clary
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True, exist_ok=True)
        (home / "settings.toml").write_text(settings(environments, own), encoding="utf-8")
        self._variables = {
            "CLARY_HOME": str(home),
            "CLARY_PORT": "0",
            "CLARY_TLS_PORT": str(_free_port()),
            "CLARY_DEFAULT_PYTHON": str(python_of("train", own)),
        }
        self._home = home

    def __enter__(self) -> Self:
        """Start it.

        Raises: RuntimeError with its words if it does not come up.
        """
        done = self._clary("up")
        if done.returncode:
            raise RuntimeError(f"the service did not start: {done.stdout}{done.stderr}")
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "SAGEMAKER_", "CLARY_"))
        }
        kept["HOME"] = str(self._home / "client-home")
        Path(kept["HOME"]).mkdir(exist_ok=True)
        for line in self._clary("env", "--tls").stdout.splitlines():
            if line.startswith("export "):
                name, _, value = line.removeprefix("export ").partition("=")
                kept[name] = shlex.split(value)[0]
        self.environment = kept
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        done = self._clary("down")
        if done.returncode:
            raise RuntimeError(f"the service did not end: {done.stdout}{done.stderr}")

    def _clary(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self._clary_python), "-m", "clary.cli.main", *words],
            env={**os.environ, **self._variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=UP_TIMEOUT_S,
        )


def settings(environments: set[str], own: Path) -> str:
    """Return a service's settings: a rule and an environment for each image, and the ranks of each instance type."""
    lines = [
        "memory_overcommit = 16.0",
        "clamp_processes = false",
        "hang_timeout_s = 0.0",
        f'visible_folders = "{ROOT / ".venvs"}:{own}"',
        "[images]",
        *[f'"public/{name}:*" = "{name}"' for name in sorted(environments)],
        *[f'"{kind}-training:*" = "public-{name}"' for kind, name in AWS_IMAGES if f"public-{name}" in environments],
        "[environments]",
        *[f'{name} = "{python_of(name, own)}"' for name in sorted(environments)],
    ]
    for ranks, name in TYPES.items():
        lines += [f'[instance_types."{name}"]', f"processes = {ranks}"]
    return "\n".join([*lines, ""])


def run_job(script: Script, *, service: Service, source: Path, data: Path, scratch: Path, deadline_s: float) -> Outcome:
    """Run a script as a job and return the outcome. The job's output stays in `scratch`."""
    scratch.mkdir(parents=True)
    request = scratch / "request.json"
    command = [str(CLIENT_PYTHON), str(Path(__file__).with_name("submit.py")), str(request)]
    if script.distribution == NOTEBOOK:
        request.write_text(json.dumps({place: str(data / maker) for place, maker in script.buckets.items()}))
        cells = Path(__file__).with_name("run_cells.py")
        command = [str(CLIENT_PYTHON), str(cells), str(source / script.entry), str(request)]
    else:
        request.write_text(json.dumps(request_of(script, source, data, deadline_s)), encoding="utf-8")
    started = time.monotonic()
    with (scratch / "said.txt").open("wb") as said:
        client = subprocess.Popen(
            command,
            env=service.environment,
            cwd=source if script.distribution == NOTEBOOK else scratch,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
        )
        try:
            code: int | None = client.wait(timeout=deadline_s + AFTER_S)
        except subprocess.TimeoutExpired:
            client.terminate()
            client.wait(timeout=AFTER_S)
            code = None
    text = (scratch / "said.txt").read_text(encoding="utf-8", errors="replace")
    return judge_job(script, said=text, code=code, seconds=time.monotonic() - started)


def judge_job(script: Script, *, said: str, code: int | None, seconds: float) -> Outcome:
    """Return the outcome of a job, from the service's description of it and from its log."""
    if script.distribution == NOTEBOOK:
        return judge(script, WAY, said=said, code=code, seconds=seconds)
    told = [line.removeprefix("JOB ") for line in said.splitlines() if line.startswith("JOB ")]
    if code is None or code or not told:
        return judge(script, WAY, said=said, code=code if code is None else code or 1, seconds=seconds)
    job = json.loads(told[-1])
    if job["status"] == "Completed":
        return judge(script, WAY, said=said, code=0, seconds=seconds)
    if "MaxRuntimeExceeded" in job["reason"] or job["status"] == "Stopped":
        return Outcome(script.name, WAY, TOO_LONG, seconds, job["reason"])
    return Outcome(script.name, WAY, FAILED, seconds, last_error(said) or job["reason"])


def request_of(script: Script, source: Path, data: Path, deadline_s: float) -> dict[str, Any]:
    """Return the request that `submit.py` reads."""
    channel = f"/opt/ml/input/data/{script.channels[0]}"
    places = Places(IN_JOBS.source, channel, IN_JOBS.model, IN_JOBS.checkpoints)
    return {
        "name": script.name.replace(".", "-"),  # names of jobs have no dots
        "framework": script.framework,
        "hosts": script.hosts,
        "entry": script.entry,
        "source": str(source),
        "data": str(data),
        "channels": script.channels,
        "image": f"public/{script.environment}:1",
        "instance_type": TYPES[script.ranks],
        "distribution": distribution_of(script),
        "hyperparameters": {name: places.fill(value) for name, value in script.arguments.items()},
        "environment": {
            **({"CLARY_CUDA_ON_CPU": "1"} if script.cuda else {}),
            "OMP_NUM_THREADS": "1",
            **{name: places.fill(value) for name, value in script.variables.items()},
        },
        "deadline_s": int(deadline_s),
    }


def distribution_of(script: Script) -> dict[str, Any] | None:
    """Return the estimator's `distribution`."""
    model_parallel = {"modelparallel": {"enabled": True, "parameters": script.parameters}}
    mpi = {"mpi": {"enabled": True, "processes_per_host": script.ranks}}
    forms: dict[str, dict[str, Any] | None] = {
        SMP: {"smdistributed": model_parallel, **mpi},
        MPI: mpi,
        SERVERS: {"parameter_server": {"enabled": True}},
        MIRRORED: {"multi_worker_mirrored_strategy": {"enabled": True}},
        ALONE: None,
        TSM: {"smdistributed": model_parallel, "torch_distributed": {"enabled": True}},
        SMDDP: {"smdistributed": {"dataparallel": {"enabled": True}}},
        DDP: {"pytorchddp": {"enabled": True}},
        TORCHRUN: {"torch_distributed": {"enabled": True}},
    }
    return forms[script.distribution]


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port
