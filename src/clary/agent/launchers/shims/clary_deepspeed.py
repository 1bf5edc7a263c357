"""`deepspeed` across a job's hosts: each host that calls it starts its own ranks, without ssh or pdsh.

    clary_deepspeed.py OPTIONS... train.py ARGUMENTS...       replaces `deepspeed`
    clary_deepspeed.py --clary-rank FORM train.py ARGUMENTS...   one rank, as DeepSpeed's launcher of a host starts it

Where: `bin/deepspeed` comes first in PATH of a job. DeepSpeed's own launcher starts ranks on its own machine, or by ssh
on the hosts of a hostfile; in a job, however, every host runs the program's command. DeepSpeed's own parser parses the
command line, and DeepSpeed's own launcher of one host starts the ranks, each through `clary_rank`. Command lines for
another start method run the real deepspeed unchanged: with a hostfile, `localhost` in --include or --exclude,
--launcher or an option in `_OWN_WAYS`, such as --force_multi. It runs in the user's environment: Python 3.8 or later,
with the standard library and deepspeed, without clary.
Source: DeepSpeed 0.19 `launcher.runner` (options), `launcher.launch` (ranks of one host).
"""

from __future__ import annotations

import base64
import importlib
import importlib.util
import json
import os
import shutil
import sys
from typing import Any, NoReturn

HOST_LIST_VARIABLE = "CLARY_HOST_LIST"  # as `clary.agent.launchers.host_list`
RANK_ROLE = "--clary-rank"
_LAUNCH = "deepspeed.launcher.launch"
_FOLDER = os.path.dirname(os.path.realpath(__file__))
_NOT_FOUND_CODE = 127
_OWN_WAYS = ("launcher_args", "force_multi", "no_ssh", "autotuning", "ssh_port", "venv_script")  # to start ranks


class NotOursError(Exception):
    """The real deepspeed must handle the command line."""


class CommandError(Exception):
    """The command line asks for hosts that the job does not have."""


def main() -> None:
    """Execute this process's command line; never return."""
    arguments = sys.argv[1:]
    if arguments[:1] == [RANK_ROLE]:
        _be_rank(arguments[1], arguments[2:])
    told = json.loads(os.environ.get(HOST_LIST_VARIABLE, "{}"))
    if not told or importlib.util.find_spec("deepspeed") is None:
        _run_real(arguments)
    command = None
    try:
        command = command_of(arguments, importlib.import_module("deepspeed.launcher.runner"), told)
    except CommandError as error:
        sys.exit(f"deepspeed: {error}")
    except (NotOursError, SystemExit):  # the real deepspeed prints --help and the errors of its parser
        _run_real(arguments)
    except Exception as error:  # noqa: BLE001 - a version of DeepSpeed that this does not know
        if len(told["hosts"]) > 1:  # DeepSpeed's own launcher would train on each host separately
            sys.exit(
                f"deepspeed: the ranks of {len(told['hosts'])} hosts cannot be started with this version: {error!r}. "
                'Start them with torch_distributed, or each host alone with "python -m deepspeed.launcher.runner".'
            )
        _run_real(arguments)
    if command is None:
        sys.exit(0)
    _become(command)


def command_of(arguments: list[str], runner: Any, told: dict[str, Any]) -> list[str] | None:
    """Return the command that starts the ranks of this host; None if the command line excludes this host.

    Args:
        runner: the module `deepspeed.launcher.runner`.
        told: content of CLARY_HOST_LIST.

    Raises: NotOursError; CommandError; the errors of DeepSpeed's parser.
    """
    parsed = _parse_quietly(arguments, runner)
    defaults = _parse_quietly([parsed.user_script], runner)
    if any(getattr(parsed, name, None) != getattr(defaults, name, None) for name in (*_OWN_WAYS, "launcher")):
        raise NotOursError
    filters = f"{parsed.include} {parsed.exclude}"
    if os.path.isfile(parsed.hostfile) or parsed.hostfile != defaults.hostfile or "localhost" in filters:
        raise NotOursError
    numbers = {name: number for name, _, number in told["hosts"]}
    slots = dict(runner.parse_inclusion_exclusion(numbers, parsed.include, parsed.exclude))
    if parsed.num_nodes > len(slots):
        raise CommandError(
            f"--num_nodes {parsed.num_nodes}: expected at most {len(slots)}, the number of the job's hosts"
        )
    if parsed.num_nodes > 0:
        slots = dict(list(slots.items())[: parsed.num_nodes])
    if parsed.num_gpus > 0:
        slots = {name: list(range(parsed.num_gpus)) for name in slots}
    here = told["here"]
    if here not in slots:
        print(f"deepspeed: {here} is not among the hosts that the command line names: nothing runs here", flush=True)
        return None
    addresses = {name: address for name, address, _ in told["hosts"]}
    master = parsed.master_addr or addresses[next(iter(slots))]
    port = parsed.master_port if parsed.master_port != defaults.master_port else told["port"]
    world = base64.urlsafe_b64encode(json.dumps(slots).encode()).decode()
    launch = [sys.executable, "-u", "-m", _LAUNCH, f"--world_info={world}", f"--node_rank={list(slots).index(here)}"]
    launch += [f"--master_addr={master}", f"--master_port={port}", *_passed_on(parsed, defaults)]
    if parsed.no_python:
        program = [parsed.user_script, *parsed.user_args]
        return [*launch, "--no_python", *(["--no_local_rank"] if parsed.no_local_rank else []), *program]
    form = f"{'module' if parsed.module else 'script'},{'none' if parsed.no_local_rank else 'local_rank'}"
    program = [os.path.join(_FOLDER, "clary_deepspeed.py"), RANK_ROLE, form, parsed.user_script, *parsed.user_args]
    return [*launch, "--no_local_rank", *program]


def _passed_on(parsed: Any, defaults: Any) -> list[str]:
    """Return the given options that DeepSpeed's launcher of one host supports too."""
    options = [f"--{name}" for name in ("bind_cores_to_rank", "quiet") if getattr(parsed, name, False)]
    for name in ("bind_core_list", "enable_each_rank_log", "log_level"):
        value = getattr(parsed, name, None)
        if value is not None and value != getattr(defaults, name, None):
            options.append(f"--{name}={value}")
    if getattr(parsed, "save_pid", False):
        options.append(f"--save_pid={os.getpid()}")  # this process executes the launcher
    return options


def _parse_quietly(arguments: list[str], runner: Any) -> Any:
    """Parse without printing errors: the real deepspeed prints them."""
    stdout, stderr = sys.stdout, sys.stderr
    with open(os.devnull, "w") as nothing:
        sys.stdout = sys.stderr = nothing
        try:
            return runner.parse_args(arguments)
        finally:
            sys.stdout, sys.stderr = stdout, stderr


def _be_rank(form: str, program: list[str]) -> NoReturn:
    """Replace this process by a rank's program, with the argument --local_rank as DeepSpeed passes it."""
    kind, _, local_rank = form.partition(",")
    given = [f"--local_rank={os.environ['LOCAL_RANK']}"] if local_rank == "local_rank" else []
    words = [*(["-m"] if kind == "module" else []), program[0], *given, *program[1:]]
    command = [sys.executable, "-u", os.path.join(_FOLDER, "clary_rank.py"), *words]
    _become(command)


def _run_real(arguments: list[str]) -> NoReturn:
    own = os.path.join(_FOLDER, "bin")
    folders = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if os.path.realpath(folder) != own]
    real = shutil.which("deepspeed", path=os.pathsep.join(folders))
    if real is None and importlib.util.find_spec("deepspeed") is None:
        print(f"deepspeed: not found: deepspeed is not installed for {sys.executable}", file=sys.stderr)
        sys.exit(_NOT_FOUND_CODE)
    command = [real] if real is not None else [sys.executable, "-m", "deepspeed.launcher.runner"]
    _become([*command, *arguments])


def _become(command: list[str]) -> NoReturn:
    sys.stdout.flush()
    os.execv(command[0], command)  # noqa: S606 - takes this process's place


if __name__ == "__main__":
    main()
