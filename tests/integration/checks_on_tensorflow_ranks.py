"""Runs functions on several ranks of TensorFlow, each a process with the variables that launchers set.

A program is a file of functions `check_...(rank, size)`. `names` reads them without importing it. `outcomes` starts the
ranks once a session; every rank runs the functions in their order and tells how each ended. Ran as a script, this file
is one rank.
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
_LIMIT_S = 170.0
_OPERATION_LIMIT_S = 20


def names(program: Path) -> list[str]:
    """Return the names of a program's functions, in its order."""
    tree = ast.parse(program.read_text(encoding="utf-8"))
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")]


@cache
def outcomes(program: Path, size: int, *, is_legacy: bool = False) -> dict[str, list[str | None]]:
    """Run a program on `size` ranks; by function, why it failed on each rank, None where it did not.

    Args:
        is_legacy: whether `tf.keras` is legacy Keras.
    """
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="clary-tensorflow-ranks-", ignore_cleanup_errors=True) as folder:
        ranks = [_start(program, rank, size, port, Path(folder), is_legacy) for rank in range(size)]
        deadline = time.monotonic() + _LIMIT_S
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


def assert_passed(program: Path, name: str, size: int, *, is_legacy: bool = False) -> None:
    """Fail with the words of each rank on which the function failed.

    Args: as `outcomes`; `name` is that of the function.
    """
    failures = outcomes(program, size, is_legacy=is_legacy)[name]
    words = "\n".join(f"rank {rank}: {failure}" for rank, failure in enumerate(failures) if failure is not None)
    assert not words, f"{program.name}: {name}\n{words}"


def _start(program: Path, rank: int, size: int, port: int, folder: Path, is_legacy: bool) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "TMPDIR": str(folder),
        "PYTHONPATH": f"{ROOT / 'src/clary/compat'}:{ROOT / 'src'}",
        "OMP_NUM_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_USE_LEGACY_KERAS": str(int(is_legacy)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "CLARY_COLLECTIVE_TIMEOUT_S": str(_OPERATION_LIMIT_S),
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": str(_OPERATION_LIMIT_S),
    }
    with (folder / f"log-{rank}").open("wb") as log:
        command = [str(PYTHON), __file__, str(program), str(rank), str(size), str(folder)]
        return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)


def _read(folder: Path, rank: int, code: int) -> dict[str, str | None]:
    told = folder / f"told-{rank}"
    lines = told.read_text(encoding="utf-8").splitlines() if told.exists() else []
    log = (folder / f"log-{rank}").read_text(encoding="utf-8", errors="replace")[-4000:]
    return {**dict(map(json.loads, lines)), "ended": f"the rank ended with {code} before it; its last words:\n{log}"}


def _be_rank(program: Path, rank: int, size: int, folder: Path) -> None:
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(1)  # the smallest pool: nothing may wait for another thread
    tf.config.threading.set_intra_op_parallelism_threads(1)
    faulthandler.dump_traceback_later(_LIMIT_S - 10)
    spec = importlib.util.spec_from_file_location(program.stem, program)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with (folder / f"told-{rank}").open("w", encoding="utf-8") as told:
        for name in names(program):
            failure = None
            try:
                getattr(module, name)(rank, size)
            except Exception:  # noqa: BLE001 - told to the test, which fails with it
                failure = traceback.format_exc()
            told.write(json.dumps([name, failure]) + "\n")
            told.flush()


if __name__ == "__main__":
    _be_rank(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
