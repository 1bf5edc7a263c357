"""Packages of AWS's images that their scripts import beside the framework. Pure.

Where: `added_environments` installs them into an environment as far as the package index has them.
Source: the available packages that AWS lists for its images, and the imports of public scripts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clary.control.engines.image_tags import Wanted

_OF_ALL = ("boto3",)
_OF_MODULE: Mapping[str, tuple[str, ...]] = {
    "sklearn": ("pandas", "scipy", "joblib"),
    "xgboost": ("scikit-learn", "pandas", "scipy", "joblib"),
}
_OF_EXTRA: Mapping[str, tuple[str, ...]] = {"transformers": ("datasets", "evaluate", "scikit-learn")}
_OF_BOTH: Mapping[tuple[str, str], tuple[str, ...]] = {("torch", "transformers"): ("accelerate",)}
# A torchvision of another index than torch's breaks at its import, and takes transformers with it.
_LEFT_OUT: Mapping[str, tuple[str, ...]] = {
    "torch": ("torchvision", "torchaudio", "pandas", "scikit-learn"),
    "tensorflow": ("pandas", "scikit-learn"),
    "mxnet": ("pandas", "scikit-learn"),
}
# Resolvers step back to datasets 2.14.4, which limits no version of what it needs, and fails at import with pyarrow 21.
_FLOORS: Mapping[str, str] = {"datasets": ">=3"}
_MODULES: Mapping[str, str] = {"scikit-learn": "sklearn"}  # of distributions that have another name


@dataclass(frozen=True)
class Companion:
    """A distribution to install beside a framework."""

    name: str

    @property
    def requirement(self) -> str:
        """Its name and, where older releases break, the oldest one that is installed."""
        return self.name + _FLOORS.get(self.name, "")

    @property
    def module(self) -> str:
        """The module that its import loads."""
        return _MODULES.get(self.name, self.name)


def companions_of(wanted: Wanted) -> tuple[Companion, ...]:
    """Return the distributions to install beside an image's framework."""
    names = (
        *_OF_MODULE.get(wanted.module, ()),
        *_OF_EXTRA.get(wanted.extra, ()),
        *_OF_BOTH.get((wanted.module, wanted.extra), ()),
        *_OF_ALL,
    )
    return tuple(map(Companion, names))


def left_out(wanted: Wanted) -> tuple[str, ...]:
    """Return distributions of an image that scripts import, and that are installed only on request."""
    return tuple(name for name in _LEFT_OUT.get(wanted.module, ()) if Companion(name) not in companions_of(wanted))
