"""smdebug under the name that users' scripts import, on top of `clary.train.debugger`.

In Python versions that the train side does not support, the import raises an error. AWS's own smdebug, if installed,
replaces this package.
"""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder

_FIRST_VERSION = (3, 10)  # first Python version that clary.train supports
_OWN_FOLDER = os.path.dirname(os.path.realpath(__file__))

_places = [place for place in sys.path if os.path.realpath(os.path.join(place, "smdebug")) != _OWN_FOLDER]
_other = PathFinder.find_spec("smdebug", _places) if __name__ == "smdebug" else None
if _other is not None and _other.loader is not None:
    sys.modules["smdebug"] = importlib.util.module_from_spec(_other)
    _other.loader.exec_module(sys.modules["smdebug"])
elif sys.version_info < _FIRST_VERSION:
    raise ImportError(
        "smdebug of Clary needs Python 3.10 or newer, this is "
        + sys.version.split()[0]
        + ": choose a newer interpreter for the job's environment in settings.toml."
    )
else:
    from clary.train.debugger import CollectionKeys, ReductionConfig, SaveConfig, SaveConfigMode, modes

__version__ = "1.0.34"  # the release of smdebug whose interface this package has

__all__ = ["CollectionKeys", "ReductionConfig", "SaveConfig", "SaveConfigMode", "modes"]
