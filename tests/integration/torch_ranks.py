"""Runs test functions on several ranks of torch.distributed, with the interpreter of training programs.

`functions_on_ranks` starts the ranks once a session; every function gets its own default group. Run as a script, this
file is one rank.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from functools import cache
from pathlib import Path

from functions_on_ranks import (
    ROOT,
    Outcomes,
    failure_of,
    has_ended,
    load,
    names,
    outcomes_of,
    require_passed,
    run_functions,
)

__all__ = ["ROOT", "TRAIN_PYTHON", "assert_passed", "names", "outcomes"]
TRAIN_PYTHON = Path(os.environ.get("CLARY_TEST_TRAIN_PYTHON", ROOT / ".venvs/train/bin/python"))
_OPERATION_LIMIT_S = 20
_MEETING_LIMIT_S = 60  # for a rank that is delayed by a busy machine or by the cleanup of the previous function
_STUCK_S = 45  # the threads' stacks are logged for a function that takes longer


@cache
def outcomes(program: Path, size: int, limit_s: float = 170.0, **variables: str) -> Outcomes:
    """Run a program on `size` ranks; return, for each function, the error of each rank, or None where it passed.

    Args:
        variables: the ranks' environment variables; `{rank}` in a value stands for the rank.
    """

    def environment(rank: int) -> dict[str, str]:
        given = {key: value.format(rank=rank) for key, value in variables.items()}
        return {"PYTHONPATH": str(ROOT / "src"), "MASTER_ADDR": "127.0.0.1", **given}

    return outcomes_of([str(TRAIN_PYTHON), __file__], program, size, environment, limit_s=limit_s)


def assert_passed(program: Path, name: str, size: int, **variables: str) -> None:
    """Fail with the errors of the ranks on which the function failed."""
    require_passed(program, name, outcomes(program, size, **variables)[name])


def _be_rank(program: Path, rank: int, size: int, folder: Path) -> None:
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    from clary.train.collective.adapters.torch.registration import register

    torch.set_num_threads(1)
    register()
    sys.path.insert(0, str(program.parent))  # for modules that the programs of one folder share
    module = load(program)

    def run(name: str) -> str | None:
        faulthandler.dump_traceback_later(_STUCK_S)
        _await_all(folder, name, rank, size)
        _count_groups_from_none(name, rank)

        def in_a_group() -> None:
            dist.init_process_group(
                os.environ.get("CLARY_TEST_BACKEND", "smddp"),
                store=dist.FileStore(str(folder / name), size),
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=_OPERATION_LIMIT_S),
            )
            torch.manual_seed(0)
            getattr(module, name)(rank, size)

        failure = failure_of(in_a_group)
        if failure is None:
            _await_others(folder, name, rank, size)
        if dist.is_initialized():
            dist.destroy_process_group()
        return failure

    run_functions(program, rank, folder, run)
    os._exit(0)  # torch's own threads may end a process with a signal if it exits in another way


def _await_all(folder: Path, name: str, rank: int, size: int) -> None:
    """Wait until all ranks have reached a function; otherwise a delayed rank would find that its peer has timed out.

    The peer would then be in the next function, which would fail too, and so would every later function.
    """
    (folder / f"at-{name}-{rank}").touch()
    deadline = time.monotonic() + _MEETING_LIMIT_S
    while time.monotonic() < deadline and not all((folder / f"at-{name}-{other}").exists() for other in range(size)):
        time.sleep(0.002)


def _count_groups_from_none(name: str, rank: int) -> None:
    """Reset torch's count of groups, by which ranks name the default group.

    torch resets the count when a group is destroyed, not when making a group fails; ranks of which only some failed
    would use different names afterwards.
    """
    from torch.distributed import distributed_c10d

    if distributed_c10d._world.group_count:
        print(f"rank {rank}, before {name}: {distributed_c10d._world.group_count} groups counted", file=sys.stderr)
        distributed_c10d._world.group_count = 0


def _await_others(folder: Path, name: str, rank: int, size: int) -> None:
    """Wait until all ranks have reached the end of a function, or one rank has failed.

    A rank may still be joining a gloo group that its peers have already finished with; it would fail if they closed the
    group.
    """
    (folder / f"through-{name}-{rank}").touch()
    deadline = time.monotonic() + _OPERATION_LIMIT_S
    while time.monotonic() < deadline:
        if all((folder / f"through-{name}-{other}").exists() for other in range(size)):
            return
        if any(has_ended(folder, other, name) for other in range(size)):
            return
        time.sleep(0.002)


if __name__ == "__main__":
    _be_rank(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
