"""Runs test functions on several ranks of torch.distributed, with the interpreter of training programs.

A program is a file of functions `test_...(rank, size)`. `names` reads them without importing it. `outcomes` starts the
ranks once a session; every function gets a default group of its own, and every rank tells how each ended. Ran as a
script, this file is one rank. CLARY_TEST_ONLY names one function; without it all run.
"""

from __future__ import annotations

import ast
import faulthandler
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TRAIN_PYTHON = Path(os.environ.get("CLARY_TEST_TRAIN_PYTHON", ROOT / ".venvs/train/bin/python"))
_OPERATION_LIMIT_S = 20
_MEETING_LIMIT_S = 60  # for a rank that is held up, by the machine or by what it ends
_STUCK_S = 45  # a function that takes longer has its threads' stacks logged


def names(program: Path) -> list[str]:
    """Return the names of a program's test functions, in its order."""
    tree = ast.parse(program.read_text(encoding="utf-8"))
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


@cache
def outcomes(program: Path, size: int, limit_s: float = 170.0, **variables: str) -> dict[str, list[str | None]]:
    """Run a program on `size` ranks; by function, why it failed on each rank, None where it did not.

    Args:
        variables: for the ranks' environment; `{rank}` in a value stands for the rank.
    """
    # What ranks leave in it goes, also of one that was killed; a process that they have left may still write there.
    with tempfile.TemporaryDirectory(prefix="clary-torch-ranks-", ignore_cleanup_errors=True) as folder:
        environment = {
            **os.environ,
            "TMPDIR": folder,
            "PYTHONPATH": str(ROOT / "src"),
            "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "127.0.0.1",
        }
        ranks = []
        for rank in range(size):
            with (Path(folder) / f"log-{rank}").open("wb") as log:
                ranks.append(
                    subprocess.Popen(
                        [str(TRAIN_PYTHON), __file__, str(program), str(rank), str(size), folder],
                        env=environment | {key: value.format(rank=rank) for key, value in variables.items()},
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )
                )
        deadline = time.monotonic() + limit_s
        try:
            for process in ranks:
                process.wait(max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            pass
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        by_rank = [_read(Path(folder), rank, process.returncode) for rank, process in enumerate(ranks)]
    return {name: [told.get(name, told["ended"]) for told in by_rank] for name in names(program)}


def assert_passed(program: Path, name: str, size: int, **variables: str) -> None:
    """Fail with the words of each rank on which the function failed."""
    failures = outcomes(program, size, **variables)[name]
    words = "\n".join(f"rank {rank}: {failure}" for rank, failure in enumerate(failures) if failure is not None)
    assert not words, f"{program.name}: {name}\n{words}"


def _read(folder: Path, rank: int, code: int) -> dict[str, str | None]:
    told = folder / f"told-{rank}"
    lines = told.read_text(encoding="utf-8").splitlines() if told.exists() else []
    log = (folder / f"log-{rank}").read_text(encoding="utf-8", errors="replace")[-4000:]
    return {**dict(map(json.loads, lines)), "ended": f"the rank ended with {code} before it; its last words:\n{log}"}


def _be_rank(program: Path, rank: int, size: int, folder: Path) -> None:
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    from clary.train.collective.adapters.torch.registration import register

    torch.set_num_threads(1)
    register()
    spec = importlib.util.spec_from_file_location(program.stem, program)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(program.parent))  # what programs of one folder share
    spec.loader.exec_module(module)
    with (folder / f"told-{rank}").open("w", encoding="utf-8") as told:
        only = os.environ.get("CLARY_TEST_ONLY")
        for name in [only] if only else names(program):
            failure = None
            faulthandler.dump_traceback_later(_STUCK_S)
            _await_all(folder, name, rank, size)
            _count_groups_from_none(name, rank)
            try:
                dist.init_process_group(
                    os.environ.get("CLARY_TEST_BACKEND", "smddp"),
                    store=dist.FileStore(str(folder / name), size),
                    rank=rank,
                    world_size=size,
                    timeout=timedelta(seconds=_OPERATION_LIMIT_S),
                )
                torch.manual_seed(0)
                getattr(module, name)(rank, size)
            except Exception:  # noqa: BLE001 - told to the test, which fails with it
                failure = traceback.format_exc()
            finally:
                if failure is None:
                    _await_others(folder, name, rank, size)
                if dist.is_initialized():
                    dist.destroy_process_group()
            told.write(json.dumps([name, failure]) + "\n")
            told.flush()
    os._exit(0)  # torch's own threads may end a process that leaves otherwise with a signal


def _await_all(folder: Path, name: str, rank: int, size: int) -> None:
    """Wait until all ranks have come to a function: one that was held up would find that its peer has given it up.

    The peer would be at the next function by then, which fails too, and so on until the last.
    """
    (folder / f"at-{name}-{rank}").touch()
    deadline = time.monotonic() + _MEETING_LIMIT_S
    while time.monotonic() < deadline and not all((folder / f"at-{name}-{other}").exists() for other in range(size)):
        time.sleep(0.002)


def _count_groups_from_none(name: str, rank: int) -> None:
    """Have ranks name the default group alike: by a number that torch begins anew where one is destroyed.

    It goes on where making one has failed; ranks that do not fail alike would look for each other in vain ever after.
    """
    from torch.distributed import distributed_c10d

    if distributed_c10d._world.group_count:
        print(f"rank {rank}, before {name}: {distributed_c10d._world.group_count} groups counted", file=sys.stderr)
        distributed_c10d._world.group_count = 0


def _await_others(folder: Path, name: str, rank: int, size: int) -> None:
    """Wait until all have come to the end of a function, or one has failed.

    A rank may still be joining a group of gloo that its peers have made and left; it would fail if they closed it.
    """
    (folder / f"through-{name}-{rank}").touch()
    deadline = time.monotonic() + _OPERATION_LIMIT_S
    while time.monotonic() < deadline:
        if all((folder / f"through-{name}-{other}").exists() for other in range(size)):
            return
        if any(f'["{name}", ' in _lines(folder, other) for other in range(size)):
            return
        time.sleep(0.002)


def _lines(folder: Path, rank: int) -> str:
    told = folder / f"told-{rank}"
    return told.read_text(encoding="utf-8") if told.exists() else ""


if __name__ == "__main__":
    _be_rank(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
