"""Import hook that calls a function as soon as a program has imported a module.

Where: `clary_jax` and `clary_numpy` use it; `clary_rank` calls them before it runs a program.
It runs in the user's environment: Python 3.8 or later, with the standard library only, without clary.
"""

from __future__ import annotations

import sys
import types
from importlib.machinery import ModuleSpec, PathFinder

TYPE_CHECKING = False  # like `typing.TYPE_CHECKING`; the imports below would take longer than Python's own start
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.abc import Loader


def when_imported(name: str, act: Callable[[types.ModuleType], object]) -> None:
    """Call `act` with a module after its import, or at once if it is already imported.

    A second call for a module that is not yet imported does nothing.
    """
    module = sys.modules.get(name)
    if module is not None:
        act(module)
    elif not any(getattr(finder, "awaits", None) == name for finder in sys.meta_path):
        sys.meta_path.insert(0, ImportFinder(name, act))


class ImportFinder:
    """Intercepts the import of one module, once; other finders handle all other modules."""

    def __init__(self, name: str, act: Callable[[types.ModuleType], object]) -> None:
        self.awaits = name
        self._act = act

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's spec, with a loader that then calls the function; None for any other name.

        Args: as `MetaPathFinder.find_spec`.
        """
        if fullname != self.awaits:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._act)  # type: ignore[assignment]
        return spec


class _Loader:
    """Loads a module with its original loader, restores that loader in the spec, and calls the function."""

    def __init__(self, loader: Loader, act: Callable[[types.ModuleType], object]) -> None:
        self._loader = loader
        self._act = act

    def create_module(self, spec: ModuleSpec) -> types.ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._act(module)
