"""A hook for programs that do not make a hook: made when they import torch, if the job has a configuration for it.

Where: `compat/clary_autoload.py` calls it at the end of `import torch`. No error here may make a program fail: an error
in a configuration is logged, and no tensor is saved.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from clary.train.debugger.configuration import (
    HookConfiguration,
    configuration_path,
    is_switched_off,
    read_configuration,
)
from clary.train.debugger.errors import ConfigurationError

_log = logging.getLogger("clary.debugger")


def install_from_config(path: str | Path | None = None) -> bool:
    """Make a hook from a job's configuration: at once if torch is imported, else as soon as it is imported.

    The hook counts steps by the first model that is called and has parameters to train.

    Args:
        path: path of the configuration; None for SMDEBUG_CONFIG_FILE_PATH or the job's default path.

    Returns: whether there is a usable configuration, and USE_SMDEBUG does not switch it off.
    """
    if is_switched_off():
        return False
    place = configuration_path(path)
    try:
        configuration = read_configuration(place)
    except FileNotFoundError:
        return False
    except (OSError, ConfigurationError) as error:
        _log.error("debugger: nothing will be saved, training goes on: %s", error)
        return False
    if "torch" in sys.modules and not hasattr(sys.modules["torch"], "__path__"):
        return False  # a placeholder module instead of torch
    if hasattr(sys.modules.get("torch"), "optim"):
        _install(configuration)
    elif not any(isinstance(finder, TorchFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, TorchFinder(configuration))
    return True


class TorchFinder(MetaPathFinder):
    """Handles the first import of torch, and leaves all other imports to other finders."""

    def __init__(self, configuration: HookConfiguration) -> None:
        self._configuration = configuration

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return torch's own spec, with a loader that makes the hook after the import; None for any other name.

        Args: as `MetaPathFinder.find_spec`.
        """
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._configuration)
        return spec


class _Loader(Loader):
    """Restores the original loader of a module, loads the module by it, and then makes the hook."""

    def __init__(self, loader: Loader, configuration: HookConfiguration) -> None:
        self._loader, self._configuration = loader, configuration

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return the result of the original loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module by the original loader, and make the hook."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _install(self._configuration)


def _install(configuration: HookConfiguration) -> None:
    try:
        # imported late: saves 619 ms, mostly torch's import, in programs without torch
        from clary.train.debugger.hook import Hook, get_hook

        if get_hook() is not None:
            return
        hook = Hook.from_configuration(configuration)
        hook.is_automatic = True
        hook.watch_for_model()
    except Exception as error:  # noqa: BLE001 - a program that does not ask for a hook must not fail by it
        _log.error("debugger: nothing will be saved, training goes on: %r", error, exc_info=error)
