"""Messages for the parts of AWS's packages that Clary does not have.

Scripts import more names than they use: those of scikit-learn import `worker` at their top and use it in functions that
an endpoint calls. The names can therefore be imported, and fail when they are used.
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn

_SERVING = ("encoder", "server", "transformer", "worker", "ServingEnv")
_TOOLKIT = "sagemaker-training"
_INSTALLABLE = {  # what brings the real package; the older one fails to import in later Pythons
    "sagemaker_containers": "sagemaker-containers (for Python 3.9 and older)",
    "sagemaker_training": _TOOLKIT,
    "sagemaker_xgboost_container": "sagemaker-xgboost-container, from its source,",
}


class NotOffered:
    """Stands for a module of AWS's package; every use of an attribute raises AttributeError with the reason."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> NoReturn:
        if attribute.startswith("_"):
            raise AttributeError(attribute)
        raise AttributeError(why_not(f"{self._name}.{attribute}"))

    def __repr__(self) -> str:
        return f"<{why_not(self._name)}>"


class EntryPoint(NotOffered):
    """Stands for `entry_point`, of which scripts that run on several hosts call one function."""

    def _wait_hostname_resolution(self) -> None:
        """Return at once: the names of a job's hosts are known before a script starts."""


class _OtherModules:
    """A finder, last of all, that has `import PACKAGE.NAME` fail with the reason instead of "No module named"."""

    def __init__(self, package: str) -> None:
        self._prefix = f"{package}."

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Raise ImportError for a module of the package; return None for others.

        Args: as `importlib.abc.MetaPathFinder.find_spec`; `path` and `target` have no effect.
        """
        if name.startswith(self._prefix):
            raise ImportError(why_not(name), name=name)


def refuse_other_modules(package: str) -> None:
    """Have the import of modules that this package lacks fail with the reason."""
    sys.meta_path.append(_OtherModules(package))


def stand_in(package: str, name: str, offered: tuple[str, ...]) -> Any:
    """Return the stand-in for a module that a package lacks.

    Args:
        package: dotted name of the package.
        name: of its attribute.
        offered: names that have stand-ins.

    Raises: AttributeError for another name.
    """
    if name not in offered:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return NotOffered(f"{package}.{name}")


def why_not(name: str) -> str:
    """Return a sentence with the reason why a dotted name is missing, and the remedy."""
    if any(part in _SERVING for part in name.split(".")):
        return (
            f"{name} belongs to endpoints, and Clary only trains: use it in functions that an endpoint calls "
            "(input_fn, output_fn and the like), not in the training"
        )
    distribution = _INSTALLABLE.get(name.partition(".")[0], _TOOLKIT)
    return (
        f"{name} is a part of AWS's containers that Clary does not have: write {distribution} into the job's "
        "requirements.txt (outside of jobs: pip install it); an installed package takes the place of Clary's"
    )
