"""Runs a script by `clary run --cuda-on-cpu`, as one tries it before it becomes a job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

from tools.public_scripts.outcomes import Outcome, judge
from tools.public_scripts.places import Places
from tools.public_scripts.table import MPI, SMDDP, SMP, TSM, Script

WAY = "clary run"
END_GRACE_S = 10
_KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR")


def run_here(
    script: Script, *, clary: Path, python: Path, source: Path, data: Path, scratch: Path, deadline_s: float
) -> Outcome:
    """Run a script in its folder, and return the outcome. Its output stays in `scratch`.

    Args:
        clary: interpreter that has Clary.
        python: the script's.

    Ordering: everything that it has started is ended when this returns.
    """
    places = Places(str(source), str(data), str(scratch / "model"), str(scratch / "checkpoints"))
    for folder in (places.model, places.checkpoints, str(scratch / "output"), str(scratch / "home")):
        Path(folder).mkdir(parents=True)
    command = [str(clary), "-m", "clary.cli.main", *command_of(script, python, places)]
    started = time.monotonic()
    with (scratch / "said.txt").open("wb") as said:
        program = subprocess.Popen(
            command,
            cwd=source,
            env=environment_of(script, python, places, scratch),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = program.wait(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(program)
    text = (scratch / "said.txt").read_text(encoding="utf-8", errors="replace")
    return judge(script, WAY, said=text, code=code, seconds=time.monotonic() - started)


def command_of(script: Script, python: Path, places: Places) -> list[str]:
    """Return the command line of `clary`."""
    folder = python.parent
    number = str(script.ranks)
    launchers = {
        "mpirun": ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", number, str(python)],
        "horovodrun": ["horovodrun", "-np", number, str(python)],
        "python": [str(python)],
    }
    if script.launcher in launchers:
        ranks = launchers[script.launcher]
    else:
        ranks = [str(folder / "torchrun"), "--standalone", "--nproc-per-node", number]
        if not (folder / "torchrun").exists():
            ranks = [str(python), "-m", "torch.distributed.run", *ranks[1:]]
    return ["run", *(["--cuda-on-cpu"] if script.cuda else []), *ranks, script.entry, *flags(script, places)]


def flags(script: Script, places: Places) -> list[str]:
    """Return the arguments as a job's launcher makes them of hyperparameters: one dash for one letter."""
    words = []
    for name, value in script.arguments.items():
        words += [f"-{name}" if len(name) == 1 else f"--{name}", places.fill(value)]
    return [word for word in words if word]


def environment_of(script: Script, python: Path, places: Places, scratch: Path) -> dict[str, str]:
    """Return the script's environment: variables of a job, and of the caller's only those in `_KEPT`."""
    told = {name: os.environ[name] for name in _KEPT if name in os.environ}
    told |= {
        "PATH": f"{python.parent}{os.pathsep}{told['PATH']}",
        "HOME": str(scratch / "home"),
        "OMP_NUM_THREADS": "1",
        "CLARY_HOROVOD_COMMITS": "",  # nothing goes on from what another script has left
        "PYTHONUNBUFFERED": "1",
        **{f"SM_CHANNEL_{channel.upper()}": places.data for channel in script.channels},
        "SM_CHANNELS": json.dumps(script.channels),
        "SM_MODEL_DIR": places.model,
        "SM_OUTPUT_DATA_DIR": str(scratch / "output"),
        "SM_OUTPUT_DIR": str(scratch / "output"),
        "SM_HOSTS": '["algo-1"]',
        "SM_CURRENT_HOST": "algo-1",
        "SM_NUM_GPUS": str(script.ranks if script.cuda else 0),
        "SM_HPS": json.dumps({name: places.fill(value) for name, value in script.arguments.items()}),
        "SM_FRAMEWORK_PARAMS": json.dumps(
            {
                "sagemaker_distributed_dataparallel_enabled": script.distribution == SMDDP,
                "sagemaker_mpi_enabled": script.distribution in (SMP, MPI),
            }
        ),
    }
    if script.distribution in (SMP, TSM):
        told["SM_HP_MP_PARAMETERS"] = json.dumps(script.parameters)
    return told | {name: places.fill(value) for name, value in script.variables.items()}


def _end(program: subprocess.Popen[bytes]) -> None:
    """End a program and its group: first asked, then killed."""
    for number, grace_s in ((signal.SIGTERM, END_GRACE_S), (signal.SIGKILL, END_GRACE_S)):
        try:
            os.killpg(program.pid, number)
        except ProcessLookupError:
            break
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline and program.poll() is None:
            time.sleep(0.1)
    program.wait(timeout=END_GRACE_S)
