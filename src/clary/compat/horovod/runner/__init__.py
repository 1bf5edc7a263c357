"""Launchers of ranks: `horovod.run`, and the command horovodrun (`launch`)."""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    *,
    np: int | None = None,
    env: Mapping[str, str] | None = None,
    executable: str | None = None,
    hosts: str | None = None,
    verbose: bool | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
) -> list[Any]:
    """Run a function on ranks of this machine and return its results in rank order.

    Args:
        func: function, sent by cloudpickle if it is installed, else by name; arguments and results are pickled, too.
        args, kwargs: arguments of the function.
        num_proc: number of ranks.
        np: argument of Horovod before 0.25; use `num_proc`.
        env: additional environment variables of the ranks.
        executable: Python interpreter of the ranks; None for the present interpreter.
        hosts: localhost:SLOTS; other hosts are refused, and SLOTS has no effect.
        verbose, use_gloo, use_mpi: have no effect.

    Raises: RuntimeError if a rank failed; ValueError for hosts other than this machine.
    """
    from horovod.runner.launch import run_command  # late: `python -m horovod.runner.launch` imports this package

    count = np if np is not None else num_proc
    if hosts is not None and any(one.partition(":")[0] not in ("localhost", "127.0.0.1") for one in hosts.split(",")):
        raise ValueError(
            f"hosts is {hosts!r}: horovod.run starts ranks on this machine alone; use a job to start "
            "ranks on other hosts"
        )
    try:
        import cloudpickle as writer
    except ImportError:
        writer = pickle
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "function"), "wb") as file:
            writer.dump((func, tuple(args), dict(kwargs or {})), file)
        command = [executable or sys.executable, "-m", "horovod.runner.function_rank", folder]
        code = run_command(command, count, variables=env)
        if code:
            raise RuntimeError(f"horovod.run: a rank ended with exit code {code}; see its output above")
        results = []
        for rank in range(count):
            with open(os.path.join(folder, f"result.{rank}"), "rb") as file:
                results.append(pickle.load(file))  # noqa: S301 - written by a rank of this call
    return results
