"""SMDDP by the name that users' scripts import; what runs is `clary.train.collective`.

Where AWS's own `smdistributed.dataparallel` is installed, this module puts it in its own place: PYTHONPATH, on which we
come last, still stands before site-packages.
"""

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder

__version__ = "2.6.0"  # the release of SMDDP whose interface this is

_FIRST_VERSION = (3, 11)  # of Python, for clary.train


def _other_spec() -> "ModuleSpec | None":
    """Return where another package of this name is, None if there is none."""
    own = os.path.dirname(os.path.realpath(__file__))
    parent = sys.modules[__name__.rpartition(".")[0]]
    places = [place for place in parent.__path__ if os.path.realpath(os.path.join(place, "dataparallel")) != own]
    return PathFinder.find_spec(__name__, places)


_other = _other_spec()
if _other is not None and _other.loader is not None:
    sys.modules[__name__] = importlib.util.module_from_spec(_other)
    _other.loader.exec_module(sys.modules[__name__])
elif sys.version_info < _FIRST_VERSION:
    raise ImportError(
        f"smdistributed.dataparallel of Clary needs Python 3.11 or newer, this is {sys.version.split()[0]}: "
        "choose a newer interpreter for the job's environment in settings.toml."
    )
