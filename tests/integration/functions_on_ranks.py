"""Runner of the functions of a program on several ranks, and their outcomes.

A program is a file of functions `test_...(rank, size)`. A driver is the script of one rank: `torch_ranks`,
`tensorflow_ranks`, `checks_on_tensorflow_ranks`. It prepares its framework and calls `run_functions`. Interpreters of
training programs import this module, so it uses only the standard library. CLARY_TEST_ONLY names one function to run.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
Outcomes = dict[str, list[str | None]]
"""Function -> for each rank: the error, or None if the function has passed."""


def names(program: Path, prefix: str = "test_") -> list[str]:
    """Return the names of a program's functions in the order of the file, without importing it."""
    tree = ast.parse(program.read_text(encoding="utf-8"))
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith(prefix)]


def outcomes_of(
    command: list[str],
    program: Path,
    size: int,
    variables: Callable[[int], Mapping[str, str]],
    *,
    limit_s: float,
    prefix: str = "test_",
) -> Outcomes:
    """Run a program on `size` ranks; return the outcomes of its functions. Ranks are killed at the time limit.

    Args:
        command: interpreter and driver, called with program, rank, size and a folder.
        program: the file of functions.
        size: number of ranks.
        variables: rank -> environment variables besides TMPDIR.
        limit_s: seconds for all functions.
        prefix: prefix of the functions' names.
    """
    # The folder is removed with its content; a process left by a rank may still write to it.
    with tempfile.TemporaryDirectory(prefix="clary-ranks-", ignore_cleanup_errors=True) as folder:
        ranks = []
        for rank in range(size):
            with (Path(folder) / f"log-{rank}").open("wb") as log:
                arguments = [*command, str(program), str(rank), str(size), folder]
                environment = {**os.environ, "TMPDIR": folder, "OMP_NUM_THREADS": "1", **variables(rank)}
                ranks.append(subprocess.Popen(arguments, env=environment, stdout=log, stderr=subprocess.STDOUT))
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
    return {name: [ended.get(name, ended["rank"]) for ended in by_rank] for name in names(program, prefix)}


def require_passed(program: Path, name: str, failures: list[str | None]) -> None:
    """Fail with the error of each rank on which a function has failed.

    Args:
        program: the file of functions.
        name: name of the function.
        failures: the outcomes of the function from `outcomes_of`.
    """
    words = "\n".join(f"rank {rank}: {failure}" for rank, failure in enumerate(failures) if failure is not None)
    assert not words, f"{program.name}: {name}\n{words}"


def load(program: Path) -> ModuleType:
    """Import a program."""
    spec = importlib.util.spec_from_file_location(program.stem, program)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_functions(
    program: Path, rank: int, folder: Path, run: Callable[[str], str | None], prefix: str = "test_"
) -> None:
    """Run the functions of a program one after the other, and record the outcome of each for `outcomes_of`.

    Args:
        program: the file of functions.
        rank: rank of this process.
        folder: folder shared by all ranks.
        run: runs the function of this name, and returns its error or None.
        prefix: prefix of the functions' names.
    """
    with _record(folder, rank).open("w", encoding="utf-8") as record:
        only = os.environ.get("CLARY_TEST_ONLY")
        for name in [only] if only else names(program, prefix):
            record.write(json.dumps([name, run(name)]) + "\n")
            record.flush()


def failure_of(call: Callable[[], object]) -> str | None:
    """Return the traceback of a call that raises, None if it returns."""
    try:
        call()
    except Exception:  # noqa: BLE001 - returned to the test, which fails with it
        return traceback.format_exc()
    return None


def has_ended(folder: Path, rank: int, name: str) -> bool:
    """Return whether a rank has recorded the outcome of a function."""
    record = _record(folder, rank)
    return record.exists() and f'["{name}", ' in record.read_text(encoding="utf-8")


def _record(folder: Path, rank: int) -> Path:
    return folder / f"ended-{rank}"


def _read(folder: Path, rank: int, code: int) -> dict[str, str | None]:
    record = _record(folder, rank)
    lines = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
    log = (folder / f"log-{rank}").read_text(encoding="utf-8", errors="replace")[-4000:]
    return {**dict(map(json.loads, lines)), "rank": f"the rank ended with {code} before it; its last words:\n{log}"}
