"""Runner of test functions that need torch, in the interpreter of training programs; the tests' own lacks torch.

A program is a file of functions `test_...`. `names` parses their names without importing the file. `outcomes` runs all
functions in one process, once per session, and returns the failure of each, None if it passed. Run as a script, this
file is that process.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import traceback
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TRAIN_PYTHON = ROOT / ".venvs/train/bin/python"
FOLDER_VARIABLE = "PROGRAM_FOLDER"  # a program's own folder, removed after its process
_LIMIT_S = 200.0


def names(program: Path) -> list[str]:
    """Return the names of a program's test functions, in the order of the file."""
    tree = ast.parse(program.read_text(encoding="utf-8"))
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


@cache
def outcomes(program: Path) -> dict[str, str | None]:
    """Run a program; return the failure of each of its functions by name."""
    # The folder is created and removed here, because the program may be killed.
    with tempfile.TemporaryDirectory(prefix="clary-program-") as folder:
        ours = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", FOLDER_VARIABLE: folder}
        done = subprocess.run(
            [str(TRAIN_PYTHON), __file__, str(program)],
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
            env={**os.environ, **ours},
        )
    if done.returncode != 0:
        raise AssertionError(f"{program.name} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def assert_passed(program: Path, name: str) -> None:
    """Fail with the traceback of a function that failed."""
    failure = outcomes(program)[name]
    assert failure is None, f"{program.name}: {name}\n{failure}"


def _run(program: Path) -> dict[str, str | None]:
    spec = importlib.util.spec_from_file_location(program.stem, program)
    assert spec is not None
    assert spec.loader is not None
    sys.path.insert(0, str(program.parent))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    failures: dict[str, str | None] = {}
    for name in names(program):
        try:
            getattr(module, name)()
            failures[name] = None
        except Exception:  # noqa: BLE001 - told to the test, which fails with it
            failures[name] = traceback.format_exc()
    return failures


if __name__ == "__main__":
    print(json.dumps(_run(Path(sys.argv[1]))), flush=True)
    os._exit(0)  # torch's threads may end a process by a signal during a normal exit
