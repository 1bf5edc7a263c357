"""Keras 2 as the package `keras`, for programs whose image had Keras 2 as `tf.keras`.

Where: `clary_rank` calls `install` before it runs a program; the service sets `CLARY_KERAS_2` and TF_USE_LEGACY_KERAS.
In such an image, `keras` and `tf.keras` were one library: layers of `keras` worked in models of `tf.keras`. Here the
package `keras` is Keras 3, whose layers those models refuse, and tf_keras is Keras 2. So modules of `keras` become the
module objects of tf_keras. Such a program cannot import Keras 3. It runs in the user's environment: Python 3.8 or
later, with the standard library only, without clary.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False  # as in `typing`; see `clary_imports`
if TYPE_CHECKING:
    from collections.abc import Sequence

VARIABLE = "CLARY_KERAS_2"
_LEGACY = "TF_USE_LEGACY_KERAS"  # read by TensorFlow; a program may have set another value
_TOLD = "CLARY_TOLD_KERAS_2"  # one process of a program prints the message


def install() -> None:
    """Make `keras` Keras 2 if the service's variable is set; a second call does nothing."""
    is_there = any(type(one).__name__ == KerasFinder.__name__ for one in sys.meta_path)
    if os.environ.get(VARIABLE) and not is_there:
        sys.meta_path.insert(0, KerasFinder())


class KerasFinder:
    """Finds modules of `keras` in tf_keras, if tf_keras is installed and TF_USE_LEGACY_KERAS is set."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec that loads the module of tf_keras; None for any other name.

        Args: as `MetaPathFinder.find_spec`.
        """
        is_keras = fullname.partition(".")[0] == "keras"
        if not is_keras or os.environ.get(_LEGACY, "").lower() not in ("1", "true"):
            return None
        import importlib.util  # imported late, which saves every rank 1 ms

        if any(importlib.util.find_spec(name) is None for name in ("tf_keras", f"tf_{fullname}")):
            return None
        _tell()
        return ModuleSpec(fullname, _SameModule(f"tf_{fullname}"), is_package=True)  # type: ignore[arg-type]


class _SameModule:
    """Loads the module of tf_keras in place of a module of `keras`, unchanged."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        module = importlib.import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__ = self._spec  # restores the spec, which the import system has replaced


def _tell() -> None:
    """Print once per program that `keras` is Keras 2."""
    if os.environ.get(_TOLD) or os.environ.get("RANK", "0") != "0":
        return
    os.environ[_TOLD] = "1"
    print(
        "clary: `import keras` is Keras 2 (tf_keras) here, as in the image. An empty CLARY_KERAS_2 in the request's "
        "Environment leaves it the installed package",
        file=sys.stderr,
        flush=True,
    )
