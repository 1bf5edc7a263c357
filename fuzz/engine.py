"""One target under atheris: `python -m fuzz.engine TARGET [libFuzzer's options] FOLDER...`.

Where: `fuzz.__main__` starts this as a process of its own, because libFuzzer ends the process that it runs in.
"""

from __future__ import annotations

import shlex
import sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from pathlib import Path

import atheris

SOURCE = Path(__file__).parents[1] / "src"


def main() -> None:
    """Instrument the product, open the target, and hand over to libFuzzer; does not return."""
    target = sys.argv[1]
    _find_by_path()
    # The targets themselves stay as they are: coverage of what makes requests says nothing of what reads them.
    with atheris.instrument_imports(include=["clary"]):
        from fuzz.targets import open_target

        context = open_target(target)
    run = context.__enter__()
    # libFuzzer gives its first argument to a shell when it minimises a corpus in processes of its own.
    command = f"{shlex.quote(sys.executable)} -m fuzz.engine {target}"
    atheris.Setup([command, *sys.argv[2:]], run)
    atheris.Fuzz()


def _find_by_path() -> None:
    """Have modules found in src: modules from the finder of an editable installation cannot be instrumented."""
    sys.meta_path[:] = [BuiltinImporter, FrozenImporter, PathFinder]
    sys.path.insert(0, str(SOURCE))


if __name__ == "__main__":
    main()
