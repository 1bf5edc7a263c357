"""`import horovod`: an installed Horovod takes precedence, otherwise ours is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
COMPAT = ROOT / "src/clary/compat"


def run(code: str, *folders: Path) -> str:
    """Run code with these folders on PYTHONPATH, in this order; return its output."""
    path = ":".join(str(folder) for folder in folders)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def test_ours_is_found_where_there_is_no_other():
    assert run("import horovod; print(horovod.__version__, horovod.__file__)", COMPAT, ROOT / "src") == (
        f"0.28.1 {COMPAT / 'horovod' / '__init__.py'}"
    )


def test_an_installed_horovod_takes_precedence_over_ours(tmp_path):
    package = tmp_path / "horovod"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = 'theirs'\n")
    (package / "torch.py").write_text("word = 'theirs too'\n")
    code = "import horovod, horovod.torch; print(horovod.__version__, horovod.torch.word)"
    assert run(code, COMPAT, ROOT / "src", tmp_path) == "theirs theirs too"


def test_horovod_run_is_there_without_being_imported_first():
    assert run("import horovod; print(horovod.run.__module__)", COMPAT, ROOT / "src") == "horovod.runner"
