"""The deepspeed shim: the ranks that a host starts for a command line, and command lines left to the real launcher."""

import argparse
import base64
import importlib
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from clary.agent.launchers.shim_files import SHIMS_BIN_FOLDER, SHIMS_FOLDER

TOLD = {"hosts": [["algo-1", "10.0.0.1", 2], ["algo-2", "10.0.0.2", 2]], "here": "algo-2", "port": 7777}


@pytest.fixture
def shim(monkeypatch):
    monkeypatch.syspath_prepend(SHIMS_FOLDER)
    yield importlib.import_module("clary_deepspeed")
    sys.modules.pop("clary_deepspeed", None)


def parse_args(arguments):
    """Read options as DeepSpeed 0.19 does."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-H", "--hostfile", default="/job/hostfile")
    for name in ("--include", "--exclude", "--master_addr", "--launcher_args", "--autotuning"):
        parser.add_argument(name, default="")
    for name in ("--num_nodes", "--num_gpus", "--node_rank"):
        parser.add_argument(name, type=int, default=-1)
    parser.add_argument("--master_port", type=int, default=29500)
    parser.add_argument("--launcher", default="pdsh")
    for name in ("--module", "--no_python", "--no_local_rank", "--no_ssh", "--force_multi", "--bind_cores_to_rank"):
        parser.add_argument(name, action="store_true")
    parser.add_argument("--log_level", default="info")
    parser.add_argument("--save_pid", action="store_true")
    parser.add_argument("user_script")
    parser.add_argument("user_args", nargs=argparse.REMAINDER)
    return parser.parse_args(arguments)


def parse_filters(numbers, include, exclude):
    """Read filters as DeepSpeed does, limited to names of hosts."""
    chosen = include.split("@") if include else [name for name in numbers if name not in exclude.split("@")]
    return {name: list(range(numbers[name])) for name in chosen}


RUNNER = SimpleNamespace(parse_args=parse_args, parse_inclusion_exclusion=parse_filters)


def options_of(command):
    """Return the options of DeepSpeed's launcher for one host, by name, and the program after them."""
    own = [word for word in command[4:] if word.startswith("--")]
    found = {word.partition("=")[0]: word.partition("=")[2] for word in own}
    found["world"] = json.loads(base64.urlsafe_b64decode(found["--world_info"]))
    return found


def test_a_host_starts_its_own_ranks_of_all_hosts(shim):
    command = shim.command_of(["train.py", "--epochs", "3"], RUNNER, TOLD)
    assert command[:4] == [sys.executable, "-u", "-m", "deepspeed.launcher.launch"]
    found = options_of(command)
    assert found["world"] == {"algo-1": [0, 1], "algo-2": [0, 1]}
    assert (found["--node_rank"], found["--master_addr"], found["--master_port"]) == ("1", "10.0.0.1", "7777")
    role = [f"{SHIMS_FOLDER}/clary_deepspeed.py", "--clary-rank", "script,local_rank"]
    assert command[command.index("--no_local_rank") + 1 :] == [*role, "train.py", "--epochs", "3"]


@pytest.mark.parametrize(
    ("options", "world"),
    [
        (["--num_gpus", "1"], {"algo-1": [0], "algo-2": [0]}),
        (["--include", "algo-2"], {"algo-2": [0, 1]}),
        (["--exclude", "algo-1"], {"algo-2": [0, 1]}),
    ],
)
def test_options_choose_hosts_and_ranks(shim, options, world):
    found = options_of(shim.command_of([*options, "train.py"], RUNNER, TOLD))
    assert found["world"] == world
    assert found["--master_addr"] == ("10.0.0.1" if "algo-1" in world else "10.0.0.2")
    assert found["--node_rank"] == str(len(world) - 1)


def test_a_port_and_an_address_that_are_given_count(shim):
    found = options_of(shim.command_of(["--master_port", "5", "--master_addr", "h", "train.py"], RUNNER, TOLD))
    assert (found["--master_addr"], found["--master_port"]) == ("h", "5")


def test_a_host_that_is_excluded_starts_nothing_and_logs_it(shim, capsys):
    assert shim.command_of(["--num_nodes", "1", "train.py"], RUNNER, TOLD) is None
    assert "algo-2 is not among the hosts" in capsys.readouterr().out


def test_more_hosts_than_the_job_has_are_refused(shim):
    with pytest.raises(shim.CommandError, match="--num_nodes 3: expected at most 2"):
        shim.command_of(["--num_nodes", "3", "train.py"], RUNNER, TOLD)


@pytest.mark.parametrize(
    "options",
    [
        ["--hostfile", "hosts"],
        ["--include", "localhost:0"],
        ["--launcher", "openmpi"],
        ["--force_multi"],
        ["--no_ssh", "--node_rank", "1"],
        ["--autotuning", "run"],
    ],
    ids=lambda options: options[0],
)
def test_other_launch_modes_are_left_to_the_real_launcher(shim, options):
    with pytest.raises(shim.NotOursError):
        shim.command_of([*options, "train.py"], RUNNER, TOLD)


def test_a_program_that_is_no_python_program_is_started_as_it_is(shim):
    command = shim.command_of(["--no_python", "./run", "-x"], RUNNER, TOLD)
    assert command[-3:] == ["--no_python", "./run", "-x"]


def test_options_of_a_host_are_passed_on(shim):
    given = ["--bind_cores_to_rank", "--log_level", "error", "--save_pid", "--module", "train"]
    command = shim.command_of(given, RUNNER, TOLD)
    assert {"--bind_cores_to_rank", "--log_level=error", f"--save_pid={os.getpid()}"} <= set(command)
    assert command[-2:] == ["module,local_rank", "train"]


def run(*arguments, program, folder, **variables):
    """Run the shim with an interpreter whose `deepspeed` package has these lines; return the completed process."""
    (folder / "deepspeed" / "launcher").mkdir(parents=True)
    (folder / "deepspeed" / "__init__.py").write_text("")
    (folder / "deepspeed" / "launcher" / "__init__.py").write_text("")
    (folder / "deepspeed" / "launcher" / "runner.py").write_text(program)
    return subprocess.run(
        [sys.executable, f"{SHIMS_FOLDER}/clary_deepspeed.py", *arguments],
        env={"PATH": SHIMS_BIN_FOLDER, "PYTHONPATH": str(folder), **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_version_that_is_not_known_is_refused_where_each_host_would_train_alone(tmp_path):
    done = run("train.py", program="print('real')", folder=tmp_path, CLARY_HOST_LIST=json.dumps(TOLD))
    assert done.returncode == 1
    assert "the ranks of 2 hosts cannot be started with this version" in done.stderr


def test_a_version_that_is_not_known_runs_as_it_is_on_one_host(tmp_path):
    told = {**TOLD, "hosts": TOLD["hosts"][1:]}
    done = run("train.py", program="print('real')", folder=tmp_path, CLARY_HOST_LIST=json.dumps(told))
    assert (done.returncode, done.stdout) == (0, "real\nreal\n")  # one line of the import, one of the run


def test_a_rank_gets_its_program_with_its_local_rank(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import sys; print(sys.argv[1:])")
    arguments = ("--clary-rank", "script,local_rank", str(script), "--epochs", "3")
    done = run(*arguments, program="", folder=tmp_path, LOCAL_RANK="1", HOME=os.environ.get("HOME", "/"))
    assert done.stdout == "['--local_rank=1', '--epochs', '3']\n", done.stderr
