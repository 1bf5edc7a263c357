"""Runs a module inside namespaces of a job, in a child process: joining a namespace changes the calling process.

Where: `network_faults` and `disk_faults` call it, and are the modules that it runs.
"""

from __future__ import annotations

import asyncio
import sys

from clary.base.errors import EngineError
from clary.base.limited_runs import OutputTooLong
from clary.control.engines.local.agent_processes import clary_folder
from clary.control.limited_children import end_child, read_output

TIMEOUT_S = 10.0


async def run_inside(module: str, *arguments: str, doing: str) -> None:
    """Run `python -m MODULE ARGUMENTS` and wait for it.

    Args:
        module: module that prints the reason of a failure on its last line.
        arguments: arguments of the module.
        doing: the action and its job, for errors: `job demo: setting algo-2 down`.

    Raises: EngineError if the module fails or takes longer than `TIMEOUT_S`.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-S",
        "-m",
        module,
        *arguments,
        env={"PYTHONPATH": clary_folder()},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            output, _ = await read_output(process, module)
    except TimeoutError:
        raise EngineError(f"{doing} took longer than {TIMEOUT_S:g} s") from None
    except OutputTooLong as error:
        raise EngineError(f"{doing} failed: {error}") from error
    finally:
        if process.returncode is None:
            await end_child(process)
    if process.returncode != 0:
        said = output.decode(errors="replace").strip().rpartition("\n")[2]
        raise EngineError(f"{doing} failed: {said}")
