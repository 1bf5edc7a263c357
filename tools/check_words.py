"""Fail when the first line of a docstring has a word that hides its subject.

A first line begins with a verb or a concrete noun and names the thing itself. "What the ranks do now", "those that have
left" and "none where there is none" make a stranger read twice. Texts in backticks are not looked at.

Run: `python tools/check_words.py PATH...` lists them; without a path those of FOLDERS, where there may be none.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

FOLDERS = ("src", "tests", "benchmarks", "tools", "fuzz", "examples")
HIDING = re.compile(
    r"\b([Ww]hat|[Ww]ho|[Ww]hom|[Ww]hoever|[Ww]hatever|[Tt]hose (?:that|who|which)|none|one of which)\b"
)
QUOTED = re.compile(r"`[^`]*`|\"[^\"]*\"")
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def main(arguments: list[str]) -> int:
    """Print the first lines with such a word in the paths, or in FOLDERS; return 1 if there are any."""
    files = sorted(path for given in arguments or FOLDERS for path in _files_of(Path(given)))
    told = [line for path in files for line in _findings(path)]
    if told:
        print("\n".join(told))
    return 1 if told else 0


def _files_of(path: Path) -> list[Path]:
    """Return the Python files at or below a path."""
    return [path] if path.is_file() else list(path.rglob("*.py"))


def _findings(path: Path) -> list[str]:
    """Return a line for each docstring of a file whose first line hides its subject."""
    told = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, Documented):
            continue
        first = (ast.get_docstring(node) or "").partition("\n")[0]
        found = HIDING.search(QUOTED.sub("", first))
        if found is not None:
            line = 1 if isinstance(node, ast.Module) else node.lineno
            told.append(f"{path}:{line}: '{found[1]}' in: {first}")
    return told


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
