"""`clary run COMMAND`: run a program here as in a job, with `smddp` and Clary's stand-in libraries.

No service is needed, and no data is recorded. The program finds Clary's train side in a folder that is removed
afterwards. The end of PATH holds launchers of libraries that Clary replaces; torch is the program's own.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from clary.agent.environments.train_library import library_folder, write_train_library
from clary.agent.launchers.shim_files import SHIMS_BIN_FOLDER
from clary.base.errors import ClaryError, Fault
from clary.contract.ml_tree import MlTree
from clary.contract.settings.hyperparameters import CUDA_ON_CPU_VARIABLE

MASTER_PORT_VARIABLE = "CLARY_RUN_MASTER_PORT"  # `compat.clary_autoload` lets the ranks of mpirun meet at this port
_LAUNCHERS = ("horovodrun", "smddprun", "smddpmprun")
SIGNAL_EXIT = 128  # shells add this to a signal's number for the exit code


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "run", help="run a program here, without the service: clary run --cuda-on-cpu torchrun train.py"
    )
    parser.add_argument(
        "--cuda-on-cpu", action="store_true", help="have CUDA mean the CPU, to rehearse scripts that demand a GPU"
    )
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="COMMAND", help="the program and its arguments")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the program and return its exit code. Raises: ClaryError (fault USER)."""
    program = options.program[1:] if options.program[:1] == ["--"] else options.program
    if not program:
        raise ClaryError("say what to run: clary run --cuda-on-cpu python train.py", fault=Fault.USER)
    with tempfile.TemporaryDirectory(prefix="clary-run-") as folder:
        tree = MlTree(Path(folder))
        write_train_library(tree)
        paths = [*filter(None, [os.environ.get("PYTHONPATH")]), str(library_folder(tree))]
        environment = {
            **os.environ,
            "PATH": os.pathsep.join([*filter(None, [os.environ.get("PATH")]), str(_write_launchers(Path(folder)))]),
            "PYTHONPATH": os.pathsep.join(paths),
            MASTER_PORT_VARIABLE: str(_free_port()),
        }
        if options.cuda_on_cpu:
            environment[CUDA_ON_CPU_VARIABLE] = "1"
        return _run(program, environment)


def _write_launchers(folder: Path) -> Path:
    """Make a folder, last on PATH, of the launchers that need no job: the user's own Horovod has precedence."""
    place = folder / "launchers"
    place.mkdir()
    for name in _LAUNCHERS:
        (place / name).symlink_to(Path(SHIMS_BIN_FOLDER) / name)
    return place


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def _run(program: list[str], environment: dict[str, str]) -> int:
    """Run a program, and pass signals on to it. A terminal sends ctrl-c to the program itself, with its whole group."""
    started: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def hand_on(number: int, _: object) -> None:
        if started:
            started[0].send_signal(number)
        else:
            early.append(number)

    # Not SIG_IGN, which the program would inherit.
    before = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, hand_on),
        signal.SIGHUP: signal.signal(signal.SIGHUP, hand_on),
        signal.SIGINT: signal.signal(signal.SIGINT, (lambda *_: None) if sys.stdin.isatty() else hand_on),
    }
    try:
        started.append(subprocess.Popen(program, env=environment))
        for number in early:
            started[0].send_signal(number)
        code = started[0].wait()
    except OSError as error:
        raise ClaryError(f"{program[0]} cannot be run: {error.strerror}", fault=Fault.USER) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else SIGNAL_EXIT - code
