"""Horovod under the names that users' scripts import, over Clary's collectives (`clary.train.horovod`).

In a Python version that the train side does not support, the import raises an error. A real Horovod, if installed,
replaces this package. `horovod.run` starts ranks on this machine.
"""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder
from typing import Any

_FIRST_VERSION = (3, 10)  # first Python version that clary.train supports
_OWN_FOLDER = os.path.dirname(os.path.realpath(__file__))

_places = [place for place in sys.path if os.path.realpath(os.path.join(place, "horovod")) != _OWN_FOLDER]
_other = PathFinder.find_spec("horovod", _places) if __name__ == "horovod" else None
if _other is not None and _other.loader is not None:
    sys.modules["horovod"] = importlib.util.module_from_spec(_other)
    _other.loader.exec_module(sys.modules["horovod"])
elif sys.version_info < _FIRST_VERSION:
    raise ImportError(
        "horovod of Clary needs Python 3.10 or newer, this is "
        + sys.version.split()[0]
        + ": choose a newer interpreter for the job's environment in settings.toml, or install Horovod there."
    )

__version__ = "0.28.1"  # the release of Horovod whose interface this package has


def __getattr__(name: str) -> Any:
    if name == "run":
        from horovod.runner import run  # imported late: other programs save the 60 ms of this import

        return run
    raise AttributeError(f"module 'horovod' has no attribute {name!r}")
