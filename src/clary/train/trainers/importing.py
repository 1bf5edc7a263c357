"""Patching ("mending") of a library's module when a program imports it, so that it need not be imported beforehand.

Where: `installing` names the modules. Python's own finder finds them; this module adds a call after their code has run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

Mend = Callable[[ModuleType], None]


def mend_when_imported(mends: Mapping[str, Mend]) -> None:
    """Call a function for each of these modules: at once if it is imported, else after its import.

    A module that is being imported is mended at the end of its import. Example: `from transformers import Trainer`
    imports torch, which calls this function, in the middle of the import of the module to mend.

    A further call replaces the functions of the earlier call, for example in a rank that is forked from a zygote.

    Args:
        mends: function for each module, by full name; called with the module after its code has run, in the importing
            thread.

    Raises: the error of a function; if the function runs at a later import, that `import` raises it.
    """
    for name, mend in mends.items():
        if name in sys.modules:
            _mend_once_run(sys.modules[name], mend)
    sys.meta_path[:] = [MendingFinder(mends), *(one for one in sys.meta_path if not isinstance(one, MendingFinder))]


def _mend_once_run(module: ModuleType, mend: Mend) -> None:
    """Mend a module now, or at the end of its import if its code is running."""
    spec = getattr(module, "__spec__", None)
    if type(spec) is ModuleSpec and getattr(spec, "_initializing", False):
        spec.__class__ = _RunningSpec
        spec.clary_mend = mend  # type: ignore[attr-defined]
    elif isinstance(spec, _RunningSpec) and spec._initializing:
        spec.clary_mend = mend
    else:
        mend(module)


class _RunningSpec(ModuleSpec):
    """The spec of a module whose code is running, which Python marks with `_initializing`."""

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
    """Meta path finder that finds the modules to mend as Python does and mends them once loaded; ignores others."""

    def __init__(self, mends: Mapping[str, Mend]) -> None:
        self._mends = dict(mends)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module to mend, with a loader that mends it; None for other modules.

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
