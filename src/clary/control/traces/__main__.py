"""`python -m clary.control.traces FOLDER`: read the traces of one profile."""

from __future__ import annotations

import sys
from pathlib import Path

from clary.control.traces.analysis import analyse

if __name__ == "__main__":
    analyse(Path(sys.argv[1]))
