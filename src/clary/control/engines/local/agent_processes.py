"""Starts processes that outlive the service: agents and anchors of the local engine.

Each process gets a session of its own, so that neither the service's end nor Ctrl-C in its terminal ends it. A variable
in its environment lets it be found if the service ends between starting and recording it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import clary
from clary.base.errors import EngineError
from clary.contract.launch_plan import LaunchPlan

AGENT_LOG = "agent.log"
TOKEN_VARIABLE = "CLARY_AGENT_TOKEN"  # noqa: S105 - a variable's name
POOL_TOKEN_VARIABLE = "CLARY_POOL_TOKEN"  # noqa: S105 - a variable's name
MARK_VARIABLE = "CLARY_ATTEMPT_MARK"
AGENT = (sys.executable, "-m", "clary.agent")  # the program of an agent, without its arguments
TAIL_BYTES = 2000  # part of a log that is quoted in an error

# Agents must not get settings and keys of the service; their plan contains all data that they use.
_WITHHELD_PREFIXES = ("CLARY_", "AWS_")


def clary_folder() -> str:
    """Return the folder on sys.path from which the running package `clary` was imported."""
    return str(Path(clary.__file__).absolute().parent.parent)


def own_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that belongs to no pool: `environ` without the service's variables."""
    environment = {name: value for name, value in environ.items() if not name.startswith(_WITHHELD_PREFIXES)}
    inherited = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([clary_folder(), *([inherited] if inherited else [])])
    return environment


def process_environment(environ: Mapping[str, str], mark: str) -> dict[str, str]:
    """Return the environment of a process that belongs to the pool with this mark."""
    return own_environment(environ) | {MARK_VARIABLE: mark}


def agent_environment(environ: Mapping[str, str], mark: str, plan: LaunchPlan) -> dict[str, str]:
    """Return the environment of an agent, with the tokens of its pool and of the attempt that it begins with.

    Args:
        environ: variables that the agent inherits, without the service's own variables.
        mark: mark of the pool, by which its processes are found.
        plan: plan with the tokens.
    """
    tokens = {POOL_TOKEN_VARIABLE: plan.pool_token, TOKEN_VARIABLE: plan.agent_token}
    return process_environment(environ, mark) | tokens


def agent_command(plan: LaunchPlan, host: str) -> list[str]:
    """Return the command line of the agent of one host, with its first attempt."""
    serves = ("--pool", plan.pool, "--job", plan.job_name, "--attempt", str(plan.attempt))
    mounts = ("--own-mounts",) if plan.host(host).disk_bytes is not None else ()
    return [*AGENT, "--service", plan.service_url, *serves, *mounts, "--host", host]


class LastingProcess(subprocess.Popen[bytes]):
    """A child process that may outlive this process: no warning when its object is freed."""

    def __del__(self) -> None:
        """Do nothing, unlike Popen, which would warn that the child still runs."""


def start(command: Sequence[str], *, log_path: Path, environment: Mapping[str, str]) -> LastingProcess:
    """Start a process in a session of its own; its output is appended to `log_path`.

    Args:
        command: program and arguments.
        log_path: made if it is missing; its folder is the working directory.
        environment: the whole environment.
    Raises: EngineError naming command and file.
    """
    try:
        with open(log_path, "ab") as log:
            return LastingProcess(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(environment),
                cwd=log_path.parent,
                start_new_session=True,
            )
    except OSError as error:
        raise EngineError(f"{command[0]} could not be started with log {log_path}: {error}", retryable=True) from error


def tail(path: Path) -> str:
    """Return the end of a log for an error message; empty for an empty or missing log."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return file.read().decode(errors="replace").strip()
    except OSError:
        return ""


def last_words(path: Path) -> str:
    """Return the end of a log for an error message; for an empty log, say so, and whether the disk is full."""
    said = tail(path)
    if said:
        return said
    try:
        facts = os.statvfs(path.parent)
    except OSError:
        return "it said nothing"
    free = facts.f_bavail * facts.f_frsize
    full = f"it said nothing: No space left on device, {free} bytes are free at {path.parent}"
    return full if free < TAIL_BYTES else "it said nothing"
