"""What torch calls at the end of `import torch`, through the entry point of the folder that jobs get.

Scripts may then say `init_process_group("smddp")` without importing anything, and `import torch.sagemaker`, as in
AWS's images. A failure here would fail `import torch` for jobs that never use it, so whatever is in the way leaves
torch as it was; scripts that import `smdistributed.dataparallel.torch.torch_smddp` themselves are told what is wrong.
It runs in the user's environment, in Pythons that Clary's train side does not support too.
"""

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec

_FOLDER = os.path.dirname(os.path.realpath(__file__))
_OWN_NAMES = os.path.join(_FOLDER, "smdistributed", "dataparallel")
_SAGEMAKER = os.path.join(_FOLDER, "torch_sagemaker")
_ADAPTER = os.path.join("train", "collective", "adapters", "torch", "registration.py")
_FIRST_VERSION = (3, 11)  # of Python, for clary.train


class SagemakerFinder:
    """Finds `torch.sagemaker` in a folder of ours, so that torch's own files stay as they are.

    It stands last in `sys.meta_path`: where AWS's library has put a folder into torch, Python has found that before.
    Submodules follow from where the package lies.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> "ModuleSpec | None":
        """Return where the package is; None for any other name."""
        if name != "torch.sagemaker":
            return None
        file = os.path.join(_SAGEMAKER, "__init__.py")
        return importlib.util.spec_from_file_location(name, file, submodule_search_locations=[_SAGEMAKER])


def register() -> None:
    """Make `torch.sagemaker` importable, and register the backend `smddp`, each unless AWS's own library is there."""
    if not any(isinstance(finder, type) and finder.__name__ == SagemakerFinder.__name__ for finder in sys.meta_path):
        sys.meta_path.append(SagemakerFinder)
    if sys.version_info < _FIRST_VERSION or not _has_adapter() or _is_replaced():
        return
    try:
        from clary.train.collective.adapters.torch import registration
    except ImportError:
        return  # the user's own folder `clary` has a part of ours, by name only
    registration.autoload()


def _has_adapter() -> bool:
    """Whether `clary` is Clary, and not a script or package of the user's, which would run if it were imported here."""
    return any(os.path.isfile(os.path.join(folder, _ADAPTER)) for folder in _folders("clary"))


def _is_replaced() -> bool:
    """Whether another `smdistributed.dataparallel` than ours is installed; looks for folders only."""
    places = [os.path.join(folder, "dataparallel") for folder in _folders("smdistributed")]
    return any(os.path.isdir(place) and os.path.realpath(place) != _OWN_NAMES for place in places)


def _folders(package: str) -> "list[str]":
    """Return where a package of this name lies; nothing is imported."""
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # somebody has put a module without a spec there: it is theirs
        return []
    return [] if spec is None else list(spec.submodule_search_locations or ())
