"""Mends a module of a library when a program imports it, so that nothing is imported for it beforehand.

Where: `installing` says which modules. Python's own finder finds them; only what happens after their code has run is
added.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

Mend = Callable[[ModuleType], None]


def mend_when_imported(mends: Mapping[str, Mend]) -> None:
    """Call a function for each of these modules: at once if it is imported, else when it is.

    A further call takes the place of the one before, as in a rank that is forked from a waiting interpreter.

    Args:
        mends: full name of a module -> what is called with it, after its own code has run, in the importing thread.

    State after failure: what a function raises is raised by the `import` that called it, or by this call.
    """
    for name, mend in mends.items():
        if name in sys.modules:
            mend(sys.modules[name])
    sys.meta_path[:] = [MendingFinder(mends), *(one for one in sys.meta_path if not isinstance(one, MendingFinder))]


class MendingFinder(MetaPathFinder):
    """Finds some modules as Python does, and has them mended once they are loaded; leaves all others to others."""

    def __init__(self, mends: Mapping[str, Mend]) -> None:
        self._mends = dict(mends)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's own spec, whose loader mends it; None for a module of no interest.

        Args: as `importlib.abc.MetaPathFinder.find_spec`.
        """
        mend = self._mends.get(fullname)
        spec = PathFinder.find_spec(fullname, path, target) if mend is not None else None
        if mend is None or spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_mend(module: ModuleType) -> None:
            execute(module)
            mend(module)

        spec.loader.exec_module = execute_and_mend  # type: ignore[method-assign]
        return spec
