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

    One that is being imported is mended at the end of that: `from transformers import Trainer` imports torch, and with
    it this, in the middle of the module that is to be mended.

    A further call takes the place of the one before, as in a rank that is forked from a waiting interpreter.

    Args:
        mends: full name of a module -> what is called with it, after its own code has run, in the importing thread.

    State after failure: what a function raises is raised by the `import` that called it, or by this call.
    """
    for name, mend in mends.items():
        if name in sys.modules:
            _mend_once_run(sys.modules[name], mend)
    sys.meta_path[:] = [MendingFinder(mends), *(one for one in sys.meta_path if not isinstance(one, MendingFinder))]


def _mend_once_run(module: ModuleType, mend: Mend) -> None:
    """Mend a module now, or at the end of its import if its code runs at the moment."""
    spec = getattr(module, "__spec__", None)
    if type(spec) is ModuleSpec and getattr(spec, "_initializing", False):
        spec.__class__ = _RunningSpec
        spec.clary_mend = mend  # type: ignore[attr-defined]
    elif isinstance(spec, _RunningSpec) and spec._initializing:
        spec.clary_mend = mend
    else:
        mend(module)


class _RunningSpec(ModuleSpec):
    """The spec of a module whose code runs, of which Python takes note that it does in `_initializing`."""

    clary_mend: Mend | None = None

    @property
    def _initializing(self) -> bool:
        return bool(vars(self).get("_initializing"))

    @_initializing.setter
    def _initializing(self, is_running: bool) -> None:
        vars(self)["_initializing"] = is_running
        mend, module = self.clary_mend, sys.modules.get(self.name)  # the module is missing if its code has failed
        if not is_running and mend is not None:
            self.clary_mend = None
            if module is not None:
                mend(module)


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
