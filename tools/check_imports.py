"""Checks that each import of our own names inside a function says the start-up time that it saves.

`python tools/check_imports.py` names the lines without a comment such as `# saves 38 ms`. `--measure` prints the time
of each: a new interpreter imports the module first, then the module named in the function; the least of five counts.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent / "src"
OURS = ("clary", "smdistributed", "smdebug")
REASON = re.compile(r"# (?:[Ii]mported late: )?(saves \d+ ms|no start-up time: )")
TRIES = 5
# What only a job's program imports is measured in the environment of programs, where torch is.
IN_PROGRAMS = ("clary.train", "clary.compat")
MEASURING = """
import importlib, sys, time
sys.path.insert(0, {sources!r})
importlib.import_module({module!r})
begin = time.perf_counter()
importlib.import_module({target!r})
print(1e3 * (time.perf_counter() - begin))
"""


@dataclass(frozen=True)
class LateImport:
    """An import inside a function."""

    path: Path
    line: int
    """Counted from 1."""
    target: str
    reason: str | None
    """The comment on the line or above its group that says why, or None."""

    @property
    def module(self) -> str:
        """The dotted name of the module that holds the function."""
        parts = self.path.relative_to(SOURCES).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def late_imports(path: Path) -> Iterator[LateImport]:
    """Yield the imports of our own names inside the functions of `path`, in the order of lines."""
    text = path.read_text()
    lines = text.splitlines()
    found: dict[int, str] = {}
    for function in ast.walk(ast.parse(text)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in OURS:
                    inner = f"{node.module}.{node.names[0].name}"
                    found[node.lineno] = inner if _is_module(inner) else node.module
                elif isinstance(node, ast.Import) and node.names[0].name.split(".")[0] in OURS:
                    found[node.lineno] = node.names[0].name
    for line in sorted(found):
        yield LateImport(path, line, found[line], _reason(lines, line, found))


def _is_module(name: str) -> bool:
    path = SOURCES.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or path.is_dir()


def _reason(lines: list[str], line: int, found: dict[int, str]) -> str | None:
    """Return the comment that gives the reason: on the line, on one above it in its group, or above the group."""
    while line in found:
        if match := REASON.search(lines[line - 1]):
            return match.group()
        line -= 1
    while lines[line - 1].strip().startswith("#"):
        if match := REASON.search(lines[line - 1]):
            return match.group()
        line -= 1
    return None


def measure(late: LateImport) -> float | None:
    """Return the time of the import in ms after its module has been imported, or None if that needs something else."""
    python = sys.executable
    if late.module.startswith(IN_PROGRAMS):
        python = str(SOURCES.parent / ".venvs" / "train" / "bin" / "python")
    program = MEASURING.format(sources=str(SOURCES), module=late.module, target=late.target)
    times = []
    for _ in range(TRIES):
        done = subprocess.run(
            [python, "-c", program], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""}, timeout=60
        )
        if done.returncode:
            return None
        times.append(float(done.stdout))
    return min(times)


def main() -> int:
    """Print the imports without a reason, or the time of each; return 1 if one lacks its reason."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="print the time of each import, in ms")
    options = parser.parse_args()
    late = [one for path in sorted(SOURCES.rglob("*.py")) for one in late_imports(path)]
    if options.measure:
        for one in late:
            time_ms = measure(one)
            said = "needs something else" if time_ms is None else f"{time_ms:.1f} ms"
            print(f"{one.path.relative_to(SOURCES)}:{one.line}: {one.target}: {said} ({one.reason})")
        return 0
    for one in late:
        if one.reason is None:
            print(
                f"{one.path.relative_to(SOURCES.parent)}:{one.line}: imports {one.target} inside a function: "
                "move it to the top, or say beside it what start-up time that saves (--measure tells)"
            )
    return 1 if any(one.reason is None for one in late) else 0


if __name__ == "__main__":
    sys.exit(main())
