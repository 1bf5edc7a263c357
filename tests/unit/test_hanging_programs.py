"""Programs that hang in the kernel, where SIGKILL does not end them: every place that runs a program goes on."""

import os
import signal
import subprocess

import pytest

from clary.agent import boot
from clary.agent.autopsy import stacks
from clary.agent.environments import clone, interpreter
from clary.agent.health import gpu_checks
from clary.agent.host import looking_ahead, overlay_support, ssh_access
from clary.agent.node import machine, user_unit
from clary.base.errors import AgentError, EngineError
from clary.base.limited_runs import collect_abandoned
from clary.cli import service_start
from clary.control.engines import added_environments, interpreters
from clary.control.engines.local import isolation, memory_limits
from clary.control.engines.slurm.programs import SlurmPrograms
from clary.testing.fake_hanging_program import FakeHangingProgram


@pytest.fixture
def hanging(monkeypatch):
    monkeypatch.setattr(FakeHangingProgram, "started", started := [])
    monkeypatch.setattr(subprocess, "Popen", FakeHangingProgram)
    yield started
    for program in started:
        program.may_end = True
    collect_abandoned()


def facts_of(python):
    return interpreter.InterpreterFacts(
        python=python,
        version="3.11.7",
        prefix="/p",
        is_virtual=False,
        base_python=python,
        site_folders=(),
        scripts_folder="/p/bin",
        script_files=(),
        distributions=(),
    )


def raised(kind, act):
    with pytest.raises(kind) as caught:
        act()
    return str(caught.value)


# Place that runs a program -> what its caller learns of a program that hangs.
PLACES = {
    "gpu check": lambda folder: gpu_checks._run(["nvidia-smi"], 0.1),
    "stacks": lambda folder: stacks.read_stacks(os.getpid(), program="py-spy", limit_s=0.1)[1],
    "interpreter": lambda folder: raised(AgentError, lambda: interpreter.inspect_interpreter("/p/python")),
    "copied environment": lambda folder: raised(AgentError, lambda: clone._make_venv(facts_of("/p/python"), folder)),
    "overlays": lambda folder: overlay_support.why_no_overlay(folder),
    "looking ahead": lambda folder: looking_ahead._look(),
    "ssh keys": lambda folder: raised(AgentError, lambda: ssh_access._make_key(folder / "key")),
    "boot": lambda folder: boot._gpus(),
    "GPUs of a box": lambda folder: machine.gpu_uuids(),
    "systemd": lambda folder: user_unit._run("systemctl"),
    "interpreters": lambda folder: raised(EngineError, lambda: interpreters.InterpreterProbe(home=folder)._ask("/p")),
    "added environments": lambda folder: raised(
        EngineError, lambda: added_environments._Work(variables={}, say=print, lock=2).run(["uv"])
    ),
    "isolation": lambda folder: isolation._probe({})[0],
    "memory limits": lambda folder: memory_limits.memory_limits({}),
    "start of a service": lambda folder: service_start._end(subprocess.Popen(["clary"]), signal.SIGTERM, print),
    "Slurm's programs": lambda folder: raised(
        EngineError, lambda: SlurmPrograms({"PATH": str(folder)}).run_now("unmunge", text="x", limit_s=0.1)
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_place_that_runs_a_program_goes_on_if_the_program_hangs_in_the_kernel(place, hanging, tmp_path):
    (tmp_path / "unmunge").touch(mode=0o755)
    PLACES[place](tmp_path)
    assert hanging
    assert all(program.was_killed for program in hanging)


def test_a_machine_with_a_hanging_driver_has_a_bad_gpu(hanging):
    listing = gpu_checks._run(["nvidia-smi"], 0.1)
    found = gpu_checks.gpu_finding("algo-1", [0], listing=listing, products=None, has_computed=False)
    assert (found.state, found.words) == (gpu_checks.BAD, "nvidia-smi does not answer")
