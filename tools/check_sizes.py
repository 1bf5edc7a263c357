"""Fail when a file or a folder outgrows the house.

A file has at most 800 lines of Python or 600 of C++. A folder has at most so many Python files of its own as WALLS
says.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

LIMITS = {".py": 800, ".cc": 600, ".cpp": 600, ".hpp": 600}
WALLS = {"src": 25, "benchmarks": 25, "tests": 40}
WITHOUT_WALL = {"src/clary/cli"}  # one verb a file


def main() -> int:
    """Print each file and folder over its limit; return 1 if there is any."""
    listed = subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True).stdout.splitlines()
    paths = [path for path in map(Path, listed) if path.exists()]
    told = [*_long_files(paths), *_crowded_folders(paths)]
    for line in told:
        print(line)
    return 1 if told else 0


def _long_files(paths: list[Path]) -> list[str]:
    """Return a line for each file with more lines than its kind may have."""
    told = []
    for path in paths:
        if path.suffix not in LIMITS or "_generated" in path.parts:
            continue
        num_lines = len(path.read_text(encoding="utf-8").splitlines())
        limit = LIMITS[path.suffix]
        if num_lines > limit:
            told.append(f"{path}: {num_lines} lines, at most {limit}: split it by what changes for different reasons")
    return told


def _crowded_folders(paths: list[Path]) -> list[str]:
    """Return a line for each folder with more Python files than its part of the tree allows."""
    counts = Counter(path.parent for path in paths if path.suffix == ".py")
    return [
        f"{folder}: {count} files, at most {WALLS[folder.parts[0]]}: move those that belong together into a folder"
        for folder, count in sorted(counts.items())
        if folder.parts and count > WALLS.get(folder.parts[0], count) and str(folder) not in WITHOUT_WALL
    ]


if __name__ == "__main__":
    sys.exit(main())
