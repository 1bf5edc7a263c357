"""Runs test functions on several ranks of a TensorFlow program, with the variables that the launcher of mpi sets.

A program is a file of functions `test_...(rank, size)`. `names` reads them without importing it. `outcomes` starts the
ranks once a session and runs all functions; every rank tells how each ended. Ran as a script, this file is one rank.
CLARY_TEST_ONLY names one function; without it all run.
"""

from __future__ import annotations

import ast
import faulthandler
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venvs/tensorflow/bin/python"
_MEETING_LIMIT_S = 60  # for a rank that is held up, by the machine or by what it ends
_STUCK_S = 100  # after it the stacks of all threads are logged, again and again


def names(program: Path) -> list[str]:
    """Return the names of a program's test functions, in its order."""
    tree = ast.parse(program.read_text(encoding="utf-8"))
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


@cache
def outcomes(program: Path, size: int, limit_s: float = 400.0, **variables: str) -> dict[str, list[str | None]]:
    """Run a program on `size` ranks; by function, why it failed on each rank, None where it did not."""
    with tempfile.TemporaryDirectory(prefix="clary-tf-ranks-", ignore_cleanup_errors=True) as folder:
        environment = {
            **os.environ,
            "TMPDIR": folder,
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'src/clary/compat'}:{program.parent}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "MASTER_ADDR": "127.0.0.1",
            "CLARY_PARALLEL_TIMEOUT_S": "60",
            **variables,
        }
        ranks = []
        for rank in range(size):
            place = {
                "OMPI_COMM_WORLD_RANK": str(rank),
                "OMPI_COMM_WORLD_SIZE": str(size),
                "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
                "OMPI_COMM_WORLD_LOCAL_SIZE": str(size),
            }
            with (Path(folder) / f"log-{rank}").open("wb") as log:
                ranks.append(
                    subprocess.Popen(
                        [str(PYTHON), __file__, str(program), str(rank), str(size), folder],
                        env=environment | place,
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
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(4)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    spec = importlib.util.spec_from_file_location(program.stem, program)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    faulthandler.dump_traceback_later(_STUCK_S, repeat=True)
    with (folder / f"told-{rank}").open("w", encoding="utf-8") as told:
        only = os.environ.get("CLARY_TEST_ONLY")
        for name in [only] if only else names(program):
            failure = None
            os.environ["MASTER_PORT"] = _meet(folder, name, rank, size)
            try:
                getattr(module, name)(rank, size)
            except Exception:  # noqa: BLE001 - told to the test, which fails with it
                failure = traceback.format_exc()
            finally:
                module.smp.shutdown()
            told.write(json.dumps([name, failure]) + "\n")
            told.flush()
    os._exit(0)


def _meet(folder: Path, name: str, rank: int, size: int) -> str:
    """Wait until all ranks have come to a function; return a free port, which rank 0 chooses."""
    if rank == 0:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            (folder / f"port-{name}.new").write_text(str(listener.getsockname()[1]))
            (folder / f"port-{name}.new").rename(folder / f"port-{name}")
    (folder / f"at-{name}-{rank}").touch()
    deadline = time.monotonic() + _MEETING_LIMIT_S
    while not all((folder / f"at-{name}-{other}").exists() for other in range(size)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank {rank}: not all ranks came to {name} in {_MEETING_LIMIT_S} s")
        time.sleep(0.01)
    return (folder / f"port-{name}").read_text()


if __name__ == "__main__":
    _be_rank(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
