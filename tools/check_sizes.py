"""Fail when a file outgrows the house: 800 lines of Python, 600 of C++."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LIMITS = {".py": 800, ".cc": 600, ".cpp": 600, ".hpp": 600}


def main() -> int:
    """Print each file over its limit; return 1 if there is any."""
    listed = subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True).stdout.splitlines()
    too_long = 0
    for name in listed:
        path = Path(name)
        if path.suffix not in LIMITS or "_generated" in path.parts or not path.exists():
            continue
        num_lines = len(path.read_text(encoding="utf-8").splitlines())
        limit = LIMITS[path.suffix]
        if num_lines > limit:
            print(f"{name}: {num_lines} lines, at most {limit}: split it by what changes for different reasons")
            too_long += 1
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main())
