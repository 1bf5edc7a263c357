"""Uses AWS's own library instead of Clary's package if a job has it installed.

Where: the packages under `smdistributed` call it first. Clary's folder is last on PYTHONPATH, but still before
site-packages; without this module Clary's folder would hide AWS's library. Python versions that are too old for
`clary.train` import this module, too.
"""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder

_FIRST_VERSION = (3, 10)  # first Python version that clary.train supports


def give_way(name: str, own_file: str) -> None:
    """Replace Clary's package `name` by another installed package of this name, if there is one.

    Args:
        own_file: `__file__` of Clary's package.

    Raises: ImportError if no other package is installed and this Python is too old for Clary's package.
    """
    own = os.path.dirname(os.path.realpath(own_file))
    parent = sys.modules[name.rpartition(".")[0]]
    places = [place for place in parent.__path__ if os.path.realpath(os.path.join(place, os.path.basename(own))) != own]
    other = PathFinder.find_spec(name, places)
    if other is not None and other.loader is not None:
        sys.modules[name] = importlib.util.module_from_spec(other)
        other.loader.exec_module(sys.modules[name])
    elif sys.version_info < _FIRST_VERSION:
        raise ImportError(
            f"{name} of Clary needs Python 3.10 or newer, this is {sys.version.split()[0]}: choose a newer "
            "interpreter for the job's environment in settings.toml."
        )
