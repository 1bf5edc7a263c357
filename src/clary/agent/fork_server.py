"""Forks the agents of hosts that run on the service's machine: `python -P -m clary.agent.fork_server`.

Where: `control.engines.local.fork_server` starts it at the first launch. It imports the modules of an agent once, which
takes 0.5 s of processor time; each fork of it is an agent that has imported them.

Orders come on standard input, one JSON object a line; each is answered by a line on standard output:

    {"command": [PYTHON, "-m", "clary.agent", ...], "environment": {...}, "log_path": "..."}
    {"pid": 4711, "started": "123456"}   or   {"error": "..."}

A forked agent waits until its answer is written, and ends if this process ends first. So the service knows of every
agent that runs. /proc shows the agent's own command and variables, by which the service finds it. The process ends when
its input ends, that is, when the service ends, even if agents are still running. It also ends after IDLE_S without an
order if no agent is running.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from clary.agent import __main__ as agent
from clary.agent.zygote.clary_zygote import show_start
from clary.base.processes import ProcessId, read_arguments
from clary.base.readiness import readable

IDLE_S = 600.0
READY_TIMEOUT_S = 10.0  # from the fork until the agent waits for its answer
_LATE_MODULES = ("clary.agent.supervisor.standby_keeping", "clary.agent.supervisor.wiring")  # an agent's late imports
_MAX_READ_BYTES = 65536
_NUM_COMMAND_PARTS = 3  # PYTHON -m clary.agent
_READY, _GO = b"r", b"g"


def main() -> int:
    """Import an agent's modules and serve orders until the input ends."""
    orders, answers = os.dup(0), os.dup(1)  # standard input and output become those of agents
    with open(os.devnull, encoding="ascii") as null:
        os.dup2(null.fileno(), 0)
    os.dup2(2, 1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies: the service watches agents by pid and start time
    for name in _LATE_MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in an agent would copy all pages
    unread = b""
    while True:
        if not readable([orders], IDLE_S):
            # If the service is process 1, it does not reap orphans: agents that outlived this process would stay as
            # zombies.
            if _has_children():
                continue
            break
        data = os.read(orders, _MAX_READ_BYTES)
        if not data:
            break
        *lines, unread = (unread + data).split(b"\n")
        for line in lines:
            _serve(json.loads(line), orders, answers)
    return 0


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _serve(order: Mapping[str, Any], orders: int, answers: int) -> None:
    """Fork one agent, answer, and let it begin."""
    ready, announce = os.pipe()
    wait, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        for descriptor in (orders, answers, ready, go):
            os.close(descriptor)
        _become_agent(order, announce, wait)
    os.close(announce)
    os.close(wait)
    is_ready = readable([ready], READY_TIMEOUT_S) and os.read(ready, 1) == _READY
    process = ProcessId.of(pid) if is_ready else None
    if process is None:
        answer: dict[str, Any] = {"error": f"the forked agent was not ready within {READY_TIMEOUT_S:g} s"}
    else:
        answer = {"pid": process.pid, "started": process.started}
    os.write(answers, json.dumps(answer).encode() + b"\n")
    if process is not None:
        with contextlib.suppress(BrokenPipeError):  # killed meanwhile
            os.write(go, _GO)
    os.close(ready)
    os.close(go)


def _become_agent(order: Mapping[str, Any], announce: int, wait: int) -> NoReturn:
    """Begin a session with the order's output, folder and variables; wait for the answer; run the agent to its end."""
    code = 1
    try:
        command, environment = list(order["command"]), dict(order["environment"])
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(order["log_path"], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        os.chdir(os.path.dirname(order["log_path"]))
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = [agent.__file__, *command[_NUM_COMMAND_PARTS:]]
        # Tokens are not shown: all processes of the same user may read these variables.
        show_start(command, {name: value for name, value in environment.items() if name not in agent.TOKEN_VARIABLES})
        is_shown = read_arguments(os.getpid()) == command
        os.write(announce, _READY)
        os.close(announce)
        if os.read(wait, 1) != _GO:
            os._exit(code)  # the fork server has ended, and perhaps the service never learnt of this process
        os.close(wait)
        # the kernel refused to show other values: only a new interpreter shows the agent's own command and variables
        if not is_shown:
            os.execve(command[0], command, environment)  # noqa: S606 - our own agent
        code = agent.main(command[_NUM_COMMAND_PARTS:])
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001 - as in any interpreter: to the log, and exit code 1
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
