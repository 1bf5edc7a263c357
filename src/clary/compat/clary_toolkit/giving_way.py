"""Uses AWS's own package instead of Clary's if a job has it installed.

Where: `sagemaker_training` and `sagemaker_containers` call it first. Clary's folder is last on PYTHONPATH, but still
before site-packages; without this module it would hide the installed package.
"""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder


def has_given_way(name: str, own_file: str) -> bool:
    """Replace Clary's top-level package `name` by another installed one; return whether there is one.

    Args:
        own_file: `__file__` of Clary's package.

    Raises: what the import of the other package raises.
    """
    own = os.path.dirname(os.path.realpath(own_file))
    places = [place for place in sys.path if os.path.realpath(os.path.join(place, name)) != own]
    other = PathFinder.find_spec(name, places)
    if other is None or other.loader is None:
        return False
    sys.modules[name] = importlib.util.module_from_spec(other)
    other.loader.exec_module(sys.modules[name])
    return True
